//! Least squares on problems with known solutions.

use plimsoll_math::least_squares::{Parameter, minimise, solve};

fn free(start: f64) -> Parameter {
    Parameter { start, low: -100.0, high: 100.0, step: 1e-6 }
}

#[test]
fn a_straight_line_is_found_exactly() {
    // y = 3 + 2 x at x = 0, 1, 2: no residual is left.
    let fit = minimise(&[free(0.0), free(0.0)], 50, |p| {
        [0.0, 1.0, 2.0].iter().map(|x| p[0] + p[1] * x - (3.0 + 2.0 * x)).collect()
    });
    assert!((fit.at[0] - 3.0).abs() < 1e-6 && (fit.at[1] - 2.0).abs() < 1e-6, "{fit:?}");
    assert!(fit.cost < 1e-12);
}

#[test]
fn rosenbrocks_valley_is_walked_to_its_end() {
    // (1 − x)² + 100 (y − x²)² has its minimum at (1, 1); Moré, Garbow and Hillstrom (1981), problem 1, from (−1.2, 1).
    let fit = minimise(&[free(-1.2), free(1.0)], 200, |p| vec![10.0 * (p[1] - p[0] * p[0]), 1.0 - p[0]]);
    assert!((fit.at[0] - 1.0).abs() < 1e-3 && (fit.at[1] - 1.0).abs() < 2e-3, "{fit:?}");
}

#[test]
fn a_minimum_beyond_the_wall_is_sought_along_it() {
    // (x − 3)² + (y − x)² with x ≤ 1: at the bound x = 1 the minimum is at y = 1.
    let walled = Parameter { high: 1.0, ..free(0.0) };
    let fit = minimise(&[walled, free(5.0)], 100, |p| vec![p[0] - 3.0, p[1] - p[0]]);
    assert!((fit.at[0] - 1.0).abs() < 1e-9 && (fit.at[1] - 1.0).abs() < 1e-4, "{fit:?}");
    assert!(fit.converged);
}

#[test]
fn a_parameter_that_nothing_depends_on_stays_and_nan_is_never_taken() {
    let fit =
        minimise(&[free(7.0), free(1.0)], 50, |p| if p[1] > 2.0 { vec![f64::NAN] } else { vec![p[1] - 1.9] });
    assert!((fit.at[0] - 7.0).abs() < 1e-6 && (fit.at[1] - 1.9).abs() < 1e-5, "{fit:?}");
}

#[test]
fn three_equations_are_solved_and_a_singular_matrix_is_not() {
    // x = 1, y = −2, z = 3; the first pivot is zero.
    let matrix = vec![vec![0.0, 2.0, 1.0], vec![1.0, 1.0, 1.0], vec![2.0, 0.0, -1.0]];
    let found = solve(matrix, vec![-1.0, 2.0, -1.0]).expect("regular");
    for (found, expected) in found.iter().zip([1.0, -2.0, 3.0]) {
        assert!((found - expected).abs() < 1e-12, "{found} against {expected}");
    }
    assert!(solve(vec![vec![1.0, 2.0], vec![2.0, 4.0]], vec![1.0, 2.0]).is_none());
}
