//! Reading `config.json`.
