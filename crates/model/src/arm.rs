//! The sides of a trial: the version that serves and the one that is tried.

/// A side.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default, Debug)]
pub enum Arm {
    /// The version that serves.
    #[default]
    Base,
    /// The version on trial.
    Canary,
}
