//! How far more of something goes: Amdahl's law for one path, Gunther's Universal Scalability Law for a whole system.

/// The speed-up of the whole when the `share` of its time is made `factor` times faster: 1 / ((1 − f) + f / s) (Amdahl 1967).
/// `factor` may be infinite.
pub fn amdahl(share: f64, factor: f64) -> f64 {
    1.0 / ((1.0 - share) + share / factor)
}

/// The speed-up where that share takes no time at all: 1 / (1 − f).
pub fn amdahl_limit(share: f64) -> f64 {
    1.0 / (1.0 - share)
}

/// How many times faster that share must be for this speed-up of the whole: f / (1/S − (1 − f)). `None` from the limit on.
pub fn amdahl_factor(share: f64, speed_up: f64) -> Option<f64> {
    let left = 1.0 / speed_up - (1.0 - share);
    (left > 0.0).then(|| share / left)
}

/// The share that was made `factor` times faster, told from the speed-up of the whole: (1 − 1/S) / (1 − 1/s). What Karp and Flatt (1990)
/// turn round to find the serial part of a program.
pub fn amdahl_share(factor: f64, speed_up: f64) -> f64 {
    (1.0 - 1.0 / speed_up) / (1.0 - 1.0 / factor)
}
