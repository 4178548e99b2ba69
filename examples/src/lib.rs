//! Shared front matter of the examples (command line, printing).
