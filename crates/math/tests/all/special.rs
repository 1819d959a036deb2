//! Special functions against values computed with mpmath 1.3 at 30 digits (series or quadrature).
#![expect(clippy::excessive_precision, reason = "published digits are kept as published")]

use proptest::prelude::*;

use plimsoll_math::special::*;

use crate::close;

#[test]
fn incomplete_beta() {
    for (a, b, x, wanted) in [
        (2.0, 3.0, 0.4, 0.5248), // by hand: 6x² − 8x³ + 3x⁴
        (0.5, 0.5, 0.1, 0.204_832_764_699_133_45),
        (1e-3, 1e-3, 0.3, 0.499_576_962_139_676_47),
        (1e-3, 5.0, 1e-4, 0.992_897_226_754_918_68),
        (101.0, 9900.5, 0.012, 0.966_187_657_358_557_35),
        (37.25, 400.0, 0.06, 0.020_468_824_188_450_131),
        (1e5, 1e5, 0.501, 0.814_453_255_442_443_03),
        (1e7, 1e7, 0.5001, 0.814_453_314_640_684_18),
        (1e5, 9.9e6, 0.01005, 0.943_803_439_285_953_25),
        (500.5, 1e7, 4.8e-5, 0.180_590_821_492_564_86),
    ] {
        close(&format!("I_{x}({a}, {b})"), beta_inc(a, b, x), wanted, 1e-10);
        close("its complement", beta_inc_pair(b, a, 1.0 - x, x).1, wanted, 1e-10);
    }
    // Near 1, the distance to 1 must be passed, because it is lost otherwise.
    close(
        "I_0.9999997(10⁷, 3)",
        beta_inc_pair(1e7, 3.0, 0.999_999_7, 3e-7).0,
        0.423_189_913_092_545_48,
        1e-10,
    );
}

#[test]
fn inverse_beta() {
    close("Beta(2, 3)", beta_inv(2.0, 3.0, 0.975), 0.805_879_550_316_756_64, 1e-12);
    close("Beta(6.5, 994.5)", beta_inv(6.5, 994.5, 0.95), 0.011_149_278_022_236_042, 1e-12);
    close("Beta(0.5, 9.5)", beta_inv(0.5, 9.5, 0.05), 0.000_212_447_962_422_734_96, 1e-12);
    close("Beta(0.001, 2)", beta_inv(1e-3, 2.0, 0.995), 0.002_455_095_764_634_789_1, 1e-10);
    // Beta(a, 1) is x^a: the root underflows below 10⁻³⁰⁸ and is zero there, not a failure.
    close("Beta(0.02, 1)", beta_inv(0.02, 1.0, 1e-3), 1e-150, 1e-11);
    assert!(beta_inv(1e-3, 1.0, 0.1) < 1e-300);
    assert!(beta_inv(-1.0, 1.0, 0.1).is_nan());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn inverse_beta_returns(ln_a in -6.9f64..16.1, ln_b in -6.9f64..16.1, p in 1e-6f64..0.999_999) {
        let (a, b) = (libm::exp(ln_a), libm::exp(ln_b));
        let (x, y) = beta_inv_pair(a, b, p, 1.0 - p);
        prop_assert!((0.0..=1.0).contains(&x) && (0.0..=1.0).contains(&y));
        // If the root is no normal number on either side, the round trip is impossible.
        if x > 1e-290 && y > 1e-290 {
            let (lower, upper) = beta_inc_pair(a, b, x, y);
            // x^a y^b of rounded x and y is no closer than this.
            let near = 1e-10 + (a + b) * f64::EPSILON;
            prop_assert!((lower - p).abs() < near, "a {} b {} p {} x {} back {}", a, b, p, x, lower);
            prop_assert!((upper - (1.0 - p)).abs() < near);
        }
    }

    #[test]
    fn inverse_gamma_returns(ln_a in -4.0f64..13.0, p in 1e-6f64..0.999_999) {
        let a = libm::exp(ln_a);
        let x = gamma_inv(a, p);
        if x > 1e-290 {
            prop_assert!((gamma_inc_pair(a, x).0 - p).abs() < 1e-10);
        }
    }
}

#[test]
fn incomplete_gamma() {
    for (a, x, lower, upper) in [
        (0.5, 0.3, 0.561_421_973_919_000_14, 0.438_578_026_080_999_86),
        (10.0, 12.0, 0.757_607_838_329_487_65, 0.242_392_161_670_512_35),
        (1e6, 1.001e6, 0.841_344_786_368_340_29, 0.158_655_213_631_659_71),
        (1e-3, 1e-5, 0.989_123_044_695_782_67, 0.010_876_955_304_217_331),
        (3.0, 40.0, 0.999_999_999_999_996_43, 3.572_865_928_700_226_3e-15),
    ] {
        let got = gamma_inc_pair(a, x);
        close(&format!("P({a}, {x})"), got.0, lower, 1e-10);
        close(&format!("Q({a}, {x})"), got.1, upper, 1e-10);
    }
    close("chi-square, 19 df, 97.5 %", 2.0 * gamma_inv(9.5, 0.975), 32.852_326_861_729_706, 1e-12);
    close("Poisson", poisson_density(3.0, 2.0), 8.0 / 6.0 * libm::exp(-2.0), 1e-14);
}

#[test]
fn normal() {
    close("Φ(−6)", normal_cdf(-6.0), 9.865_876_450_376_981_4e-10, 1e-12);
    close("Φ(1.5)", normal_cdf(1.5), 0.933_192_798_731_141_93, 1e-14);
    for (p, z) in [
        (0.975, 1.959_963_984_540_054_2),
        (0.9, 1.281_551_565_544_600_5),
        (0.001, -3.090_232_306_167_813_5),
        (1e-10, -6.361_340_902_404_056_2),
        (0.5001, 0.000_250_662_830_088_035_1),
    ] {
        close(&format!("z at {p}"), normal_inv(p), z, 1e-12);
    }
}

#[test]
fn student() {
    for (p, df, t) in [
        (0.975, 19.0, 2.093_024_054_408_263),
        (0.975, 1.0, 12.706_204_736_174_705),
        (0.95, 7.5, 1.875_747_479_211_288_5),
        (0.999, 3.0, 10.214_531_852_407_387),
        (0.6, 29.0, 0.255_683_634_571_256_13),
    ] {
        close(&format!("t at {p}, {df} df"), student_t_inv(p, df), t, 1e-12);
        close("and by symmetry", student_t_inv(1.0 - p, df), -t, 1e-12);
        close("and back", student_t_cdf(t, df), p, 1e-12);
    }
    close("many degrees are normal", student_t_inv(0.975, 1e9), 1.959_963_984_540_054, 1e-8);
}
