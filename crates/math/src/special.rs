//! Special functions: gamma, beta, normal and Student-t, their distribution functions and inverses.
//!
//! A statistics crate was rejected for one reason: the Beta bounds of every interval need *real-valued* parameters from
//! 10⁻³ to 10⁷. At these values, the usual prefactor `exp(lnΓ(a+b) − lnΓ(a) − lnΓ(b))` loses eight digits. The prefactors
//! here are Loader's saddle-point form (2000), which keeps them.
//!
//! Each distribution function returns a pair (lower, upper), so that a small tail is never one minus a number near one.
//! Arguments outside the domain give NaN.

use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

/// Returns ln |Γ(x)|.
pub(crate) fn ln_gamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Returns the regularised incomplete beta function I_x(a, b): the distribution function of Beta(a, b).
pub fn beta_inc(a: f64, b: f64, x: f64) -> f64 {
    beta_inc_pair(a, b, x, 1.0 - x).0
}

/// Returns I_x(a, b) and its complement, for x and y = 1 − x both given to full precision.
pub fn beta_inc_pair(a: f64, b: f64, x: f64, y: f64) -> (f64, f64) {
    if !(a > 0.0 && b > 0.0 && (a + b).is_finite()) || x.is_nan() || y.is_nan() {
        return (f64::NAN, f64::NAN);
    }
    if x <= 0.0 {
        return (0.0, 1.0);
    }
    if y <= 0.0 {
        return (1.0, 0.0);
    }
    let density = binomial_density(a, b, x, y);
    if x <= (a + 1.0) / (a + b + 2.0) {
        let lower = (density * b / (a + b) * beta_fraction(a, b, x)).min(1.0);
        (lower, 1.0 - lower)
    } else {
        let upper = (density * a / (a + b) * beta_fraction(b, a, y)).min(1.0);
        (1.0 - upper, upper)
    }
}

/// Returns the p-quantile of Beta(a, b), for real a, b > 0.
pub fn beta_inv(a: f64, b: f64, p: f64) -> f64 {
    beta_inv_pair(a, b, p, 1.0 - p).0
}

/// Returns the x with I_x(a, b) = p, and 1 − x, both to full precision; q = 1 − p.
pub fn beta_inv_pair(a: f64, b: f64, p: f64, q: f64) -> (f64, f64) {
    if !(a > 0.0 && b > 0.0 && (a + b).is_finite() && p >= 0.0 && q >= 0.0) {
        return (f64::NAN, f64::NAN);
    }
    if p == 0.0 {
        return (0.0, 1.0);
    }
    if q == 0.0 {
        return (1.0, 0.0);
    }
    // Solve for the smaller of x and 1 − x, in its logarithm, because either may be as small as the least double.
    if p <= beta_inc_pair(a, b, 0.5, 0.5).0 {
        let x = libm::exp(beta_inv_log(a, b, p, q));
        (x, 1.0 - x)
    } else {
        let y = libm::exp(beta_inv_log(b, a, q, p));
        (1.0 - y, y)
    }
}

/// Returns the distribution function of the gamma distribution with this shape and scale 1, and its complement.
pub fn gamma_inc_pair(shape: f64, x: f64) -> (f64, f64) {
    if shape.is_nan() || shape <= 0.0 || x.is_nan() {
        return (f64::NAN, f64::NAN);
    }
    if x <= 0.0 {
        return (0.0, 1.0);
    }
    if x == f64::INFINITY {
        return (1.0, 0.0);
    }
    let density = poisson_density(shape, x);
    if x < shape + 1.0 {
        let lower = (density * gamma_series(shape, x)).min(1.0);
        (lower, 1.0 - lower)
    } else {
        let upper = (density * shape * gamma_fraction(shape, x)).min(1.0);
        (1.0 - upper, upper)
    }
}

/// Returns the p-quantile of the gamma distribution with this shape and scale 1. A chi-square quantile with ν degrees of
/// freedom is `2 · gamma_inv(ν/2, p)`.
pub fn gamma_inv(shape: f64, p: f64) -> f64 {
    if !(shape > 0.0 && (0.0..=1.0).contains(&p)) {
        return f64::NAN;
    }
    if p == 0.0 || p == 1.0 {
        return if p == 0.0 { 0.0 } else { f64::INFINITY };
    }
    // Start with Wilson and Hilferty (1931) if it is positive, else with the leading term x^a / Γ(a + 1).
    let ninth = 1.0 / (9.0 * shape);
    let root = 1.0 - ninth + normal_inv(p) * libm::sqrt(ninth);
    let start = if shape > 0.5 && root > 0.1 {
        libm::log(shape) + 3.0 * libm::log(root)
    } else {
        (libm::log(p) + ln_gamma(shape + 1.0)) / shape
    };
    let at = |u: f64| {
        let x = libm::exp(u);
        let (lower, upper) = gamma_inc_pair(shape, x);
        (lower, upper, shape * poisson_density(shape, x))
    };
    libm::exp(invert(p, 1.0 - p, -745.0, 710.0, start, at))
}

/// Returns P(X = k) for X Poisson with this mean; real k ≥ 0 allowed: mean^k e^(−mean) / Γ(k + 1).
pub fn poisson_density(k: f64, mean: f64) -> f64 {
    if mean <= 0.0 {
        return if k == 0.0 { 1.0 } else { 0.0 };
    }
    if k == 0.0 {
        return libm::exp(-mean);
    }
    libm::exp(-stirling_error(k) - deviance(k, mean)) / libm::sqrt(2.0 * PI * k)
}

/// Returns the standard normal distribution function.
pub fn normal_cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z * FRAC_1_SQRT_2)
}

/// Returns the p-quantile of the standard normal distribution: Wichura's AS 241 (1988), about 10⁻¹⁶ relative.
pub fn normal_inv(p: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    let centred = p - 0.5;
    if centred.abs() <= 0.425 {
        let r = 0.180_625 - centred * centred;
        return centred * horner(&CENTRE_TOP, r) / horner(&CENTRE_BOTTOM, r);
    }
    let tail = if centred < 0.0 { p } else { 1.0 - p };
    if tail == 0.0 {
        return if centred < 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let r = libm::sqrt(-libm::log(tail));
    let z = if r <= 5.0 {
        horner(&MIDDLE_TOP, r - 1.6) / horner(&MIDDLE_BOTTOM, r - 1.6)
    } else {
        horner(&FAR_TOP, r - 5.0) / horner(&FAR_BOTTOM, r - 5.0)
    };
    if centred < 0.0 { -z } else { z }
}

/// Returns the distribution function of Student's t with real degrees of freedom.
pub fn student_t_cdf(t: f64, df: f64) -> f64 {
    let square = t * t;
    if square == f64::INFINITY {
        return if t > 0.0 { 1.0 } else { 0.0 };
    }
    let outside = beta_inc_pair(0.5 * df, 0.5, df / (df + square), square / (df + square)).0;
    if t < 0.0 { 0.5 * outside } else { 1.0 - 0.5 * outside }
}

/// Returns the p-quantile of Student's t with real degrees of freedom.
pub fn student_t_inv(p: f64, df: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) || df.is_nan() || df <= 0.0 {
        return f64::NAN;
    }
    let tail = p.min(1.0 - p);
    let (x, y) = beta_inv_pair(0.5 * df, 0.5, 2.0 * tail, 1.0 - 2.0 * tail);
    let t = libm::sqrt(df * y / x);
    if p < 0.5 { -t } else { t }
}

/// Returns Γ(a+b+1) / (Γ(a+1) Γ(b+1)) · x^a · y^b without cancellation: Loader (2000).
pub(crate) fn binomial_density(a: f64, b: f64, x: f64, y: f64) -> f64 {
    let n = a + b;
    let scale = stirling_error(n) - stirling_error(a) - stirling_error(b);
    libm::exp(scale - deviance(a, n * x) - deviance(b, n * y)) * libm::sqrt(n / (2.0 * PI * a * b))
}

/// Returns lnΓ(z + 1) less Stirling's (z + ½) ln z − z + ½ ln 2π.
fn stirling_error(z: f64) -> f64 {
    // Beyond 16 the next term of the series, 1.9·10⁻³ z⁻¹¹, is under 2·10⁻¹⁶.
    if z < 16.0 {
        return ln_gamma(z + 1.0) - (z + 0.5) * libm::log(z) + z - 0.5 * libm::log(2.0 * PI);
    }
    let s = 1.0 / (z * z);
    (1.0 / 12.0 - s * (1.0 / 360.0 - s * (1.0 / 1260.0 - s * (1.0 / 1680.0 - s / 1188.0)))) / z
}

/// Returns x ln(x/m) + m − x, by a series if the two are close, because the difference would cancel.
fn deviance(x: f64, m: f64) -> f64 {
    if x == 0.0 {
        return m;
    }
    let gap = x - m;
    if gap.abs() >= 0.1 * (x + m) {
        return x * (libm::log(x) - libm::log(m)) + m - x;
    }
    let v = gap / (x + m);
    let mut sum = gap * v;
    let mut term = 2.0 * x * v;
    for j in 1..1000 {
        term *= v * v;
        let next = sum + term / f64::from(2 * j + 1);
        if next == sum {
            break;
        }
        sum = next;
    }
    sum
}

/// Evaluates the continued fraction of the incomplete beta function (DLMF 8.17.22), by modified Lentz. It takes O(√max(a,
/// b)) steps on its side of the mean.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    let steps = 500 + 10 * libm::sqrt(a.max(b)) as i64;
    let mut c = 1.0;
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for m in 1..steps {
        let m = m as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / nonzero(1.0 + even * d);
        c = nonzero(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / nonzero(1.0 + odd * d);
        c = nonzero(1.0 + odd / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() <= 4.0 * f64::EPSILON {
            break;
        }
    }
    fraction
}

/// Returns Σ x^n / ((a+1)…(a+n)): the lower incomplete gamma function over its first term.
fn gamma_series(shape: f64, x: f64) -> f64 {
    let (mut sum, mut term, mut n) = (1.0, 1.0, shape);
    while term > sum * f64::EPSILON {
        n += 1.0;
        term *= x / n;
        sum += term;
    }
    sum
}

/// Evaluates the continued fraction of the upper incomplete gamma function (DLMF 8.9.2), by modified Lentz.
fn gamma_fraction(shape: f64, x: f64) -> f64 {
    let steps = 500 + 10 * libm::sqrt(shape) as i64;
    let mut b = x + 1.0 - shape;
    let mut c = 1.0 / f64::MIN_POSITIVE;
    let mut d = 1.0 / nonzero(b);
    let mut fraction = d;
    for i in 1..steps {
        let i = i as f64;
        let top = -i * (i - shape);
        b += 2.0;
        d = 1.0 / nonzero(top * d + b);
        c = nonzero(b + top / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() <= 4.0 * f64::EPSILON {
            break;
        }
    }
    fraction
}

fn nonzero(v: f64) -> f64 {
    if v.abs() < 1e-300 { 1e-300 } else { v }
}

/// Returns ln x with I_x(a, b) = p, for x of at most one half.
fn beta_inv_log(a: f64, b: f64, p: f64, q: f64) -> f64 {
    let at = |u: f64| {
        let x = libm::exp(u);
        let y = -libm::expm1(u);
        let (lower, upper) = beta_inc_pair(a, b, x, y);
        (lower, upper, binomial_density(a, b, x, y) * a * b / ((a + b) * y))
    };
    invert(p, q, -745.0, -LN_2, beta_inv_start(a, b, p), at)
}

/// Returns a first guess at ln x by Abramowitz and Stegun 26.5.22. For a parameter below 1, it is the leading term of the
/// lower tail, x^a / (a B(a, b)).
fn beta_inv_start(a: f64, b: f64, p: f64) -> f64 {
    if a < 1.0 || b < 1.0 {
        let ln_beta = ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b);
        return (libm::log(p) + libm::log(a) + ln_beta) / a;
    }
    let z = -normal_inv(p);
    let (ra, rb) = (1.0 / (2.0 * a - 1.0), 1.0 / (2.0 * b - 1.0));
    let h = 2.0 / (ra + rb);
    let lambda = (z * z - 3.0) / 6.0;
    let w = z * libm::sqrt((h + lambda).max(0.0)) / h - (rb - ra) * (lambda + 5.0 / 6.0 - 2.0 / (3.0 * h));
    -libm::log1p(b / a * libm::exp(2.0 * w))
}

/// Returns the u in [low, high] at which a rising distribution function reaches p. The method is Newton on the logarithm of
/// its smaller tail, with bisection if a step would leave the bracket. `at` returns (lower, upper, slope in u).
fn invert(p: f64, q: f64, low: f64, high: f64, start: f64, at: impl Fn(f64) -> (f64, f64, f64)) -> f64 {
    let (mut low, mut high) = (low, high);
    let mut u = if start > low && start < high { start } else { 0.5 * (low + high) };
    for _ in 0..300 {
        let (lower, upper, slope) = at(u);
        let (excess, gain) = if p <= q {
            (libm::log(lower / p), slope / lower)
        } else {
            (-libm::log(upper / q), slope / upper)
        };
        if excess < 0.0 {
            low = u
        } else {
            high = u
        }
        let step = excess / gain;
        if step.abs() <= 1e-15 * u.abs().max(1.0) {
            break;
        }
        let newton = u - step;
        let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
        if next == u {
            break;
        }
        u = next;
    }
    u
}

fn horner(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

const CENTRE_TOP: [f64; 8] = [
    3.387_132_872_796_366_5,
    133.141_667_891_784_38,
    1_971.590_950_306_551_4,
    13_731.693_765_509_46,
    45_921.953_931_549_87,
    67_265.770_927_008_7,
    33_430.575_583_588_13,
    2_509.080_928_730_122_7,
];
const CENTRE_BOTTOM: [f64; 8] = [
    1.0,
    42.313_330_701_600_91,
    687.187_007_492_057_9,
    5_394.196_021_424_751,
    21_213.794_301_586_597,
    39_307.895_800_092_71,
    28_729.085_735_721_943,
    5_226.495_278_852_545,
];
const MIDDLE_TOP: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    0.241_780_725_177_450_6,
    0.022_723_844_989_269_184,
    7.745_450_142_783_414e-4,
];
const MIDDLE_BOTTOM: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    0.689_767_334_985_1,
    0.148_103_976_427_480_08,
    0.015_198_666_563_616_457,
    5.475_938_084_995_345e-4,
    1.050_750_071_644_416_9e-9,
];
const FAR_TOP: [f64; 8] = [
    6.657_904_643_501_103,
    5.463_784_911_164_114,
    1.784_826_539_917_291_3,
    0.296_560_571_828_504_87,
    0.026_532_189_526_576_124,
    0.001_242_660_947_388_078_4,
    2.711_555_568_743_487_6e-5,
    2.010_334_399_292_288_1e-7,
];
const FAR_BOTTOM: [f64; 8] = [
    1.0,
    0.599_832_206_555_887_9,
    0.136_929_880_922_735_8,
    0.014_875_361_290_850_615,
    7.868_691_311_456_133e-4,
    1.846_318_317_510_054_7e-5,
    1.421_511_758_316_446e-7,
    2.044_263_103_389_939_8e-15,
];
