//! [`CodeDependence`]: what a code depends on beside its own element.

/// What the code of an element depends on beside the element and the scales over it. For most formats: on nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CodeDependence {
    /// On the other elements of its block: the rule rotates blocks before it quantizes them.
    pub block: bool,
    /// On its row and column: the rule rounds by random bits that are drawn by them.
    pub position: bool,
}
