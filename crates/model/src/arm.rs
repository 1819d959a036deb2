//! Defines the sides of a canary trial.

/// The side of a canary trial.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default, Debug)]
pub enum Arm {
    /// Serving version.
    #[default]
    Base,
    /// Version on trial.
    Canary,
}
