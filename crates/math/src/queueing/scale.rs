//! Amdahl's law: the speed-up of a whole from a faster part.

/// Returns the speed-up of the whole if the `share` of its time becomes `factor` times faster: 1 / ((1 − f) + f / s)
/// (Amdahl 1967). `factor` may be infinite.
pub fn amdahl(share: f64, factor: f64) -> f64 {
    1.0 / ((1.0 - share) + share / factor)
}

/// Returns the speed-up if that share takes no time: 1 / (1 − f).
pub fn amdahl_limit(share: f64) -> f64 {
    1.0 / (1.0 - share)
}

/// Returns the speed-up of that share for this speed-up of the whole: f / (1/S − (1 − f)). `None` from the limit on.
pub fn amdahl_factor(share: f64, speed_up: f64) -> Option<f64> {
    let left = 1.0 / speed_up - (1.0 - share);
    (left > 0.0).then(|| share / left)
}

/// Returns the share that became `factor` times faster, from the speed-up of the whole: (1 − 1/S) / (1 − 1/s). Karp and
/// Flatt (1990) invert this formula to find the serial part of a program.
pub fn amdahl_share(factor: f64, speed_up: f64) -> f64 {
    (1.0 - 1.0 / speed_up) / (1.0 - 1.0 / factor)
}
