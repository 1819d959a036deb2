//! Least squares within bounds, for a handful of parameters and residuals without derivatives.
//!
//! The method is damped Gauss–Newton (Levenberg 1944, Marquardt 1963) with forward differences. A step that leaves the box
//! is cut back to it. A parameter at a bound that is pushed outwards is omitted from that step. Derivative-free searches
//! were rejected, because they need ten times the evaluations, and each evaluation is a simulation.

#[derive(Clone, PartialEq, Debug)]
pub struct LeastSquaresFit {
    pub at: Vec<f64>,
    /// Half the sum of the squared residuals at `at`.
    pub cost: f64,
    pub evaluations: u32,
    /// Whether the fit stopped because no step improved it; otherwise it reached the limit of iterations.
    pub converged: bool,
}

/// A parameter's start, its bounds and the step of its difference quotient.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Parameter {
    pub start: f64,
    pub low: f64,
    pub high: f64,
    /// Step of the difference quotient; it must exceed the noise of the residuals.
    pub step: f64,
}

/// Minimises the sum of squares of `residuals` over the box. A point with non-finite residuals counts as worse than any
/// other.
pub fn minimise(
    parameters: &[Parameter],
    iterations: u32,
    mut residuals: impl FnMut(&[f64]) -> Vec<f64>,
) -> LeastSquaresFit {
    let mut at: Vec<f64> = parameters.iter().map(|one| one.start.clamp(one.low, one.high)).collect();
    let mut found = residuals(&at);
    let mut cost = half_square(&found);
    let (mut evaluations, mut damping, mut converged) = (1, 1e-3, false);
    for _ in 0..iterations {
        let slopes = slopes(parameters, &at, &found, &mut residuals);
        evaluations += parameters.len() as u32;
        let gradient: Vec<f64> = slopes.iter().map(|slope| dot(slope, &found)).collect();
        let free: Vec<usize> =
            (0..at.len()).filter(|&i| !pushed_out(&parameters[i], at[i], gradient[i])).collect();
        let mut better = false;
        for _ in 0..8 {
            let Some(next) = step(parameters, &at, &slopes, &gradient, &free, damping) else { break };
            let tried = residuals(&next);
            evaluations += 1;
            let tried_cost = half_square(&tried);
            if tried_cost < cost {
                better = cost - tried_cost > 1e-6 * cost;
                (at, found, cost) = (next, tried, tried_cost);
                damping = f64::max(damping / 5.0, 1e-9);
                break;
            }
            damping *= 5.0;
        }
        if !better {
            converged = true;
            break;
        }
    }
    LeastSquaresFit { at, cost, evaluations, converged }
}

/// Returns the derivative of every residual by each parameter. The difference is taken inwards if outwards leaves the box.
fn slopes(
    parameters: &[Parameter],
    at: &[f64],
    found: &[f64],
    residuals: &mut impl FnMut(&[f64]) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let one = |(index, parameter): (usize, &Parameter)| {
        let inwards = at[index] + parameter.step > parameter.high;
        let step = if inwards { -parameter.step } else { parameter.step };
        let mut beside = at.to_vec();
        beside[index] += step;
        residuals(&beside).iter().zip(found).map(|(there, here)| (there - here) / step).collect()
    };
    parameters.iter().enumerate().map(one).collect()
}

fn pushed_out(parameter: &Parameter, at: f64, gradient: f64) -> bool {
    (at <= parameter.low && gradient > 0.0) || (at >= parameter.high && gradient < 0.0)
}

/// Returns the end of a damped step, inside the box; `None` if no parameter moves.
fn step(
    parameters: &[Parameter],
    at: &[f64],
    slopes: &[Vec<f64>],
    gradient: &[f64],
    free: &[usize],
    damping: f64,
) -> Option<Vec<f64>> {
    let mut matrix: Vec<Vec<f64>> =
        free.iter().map(|&i| free.iter().map(|&j| dot(&slopes[i], &slopes[j])).collect()).collect();
    for (place, row) in matrix.iter_mut().enumerate() {
        // Marquardt's scaling, with a floor for a parameter without effect.
        row[place] += damping * f64::max(row[place], 1e-12);
    }
    let right: Vec<f64> = free.iter().map(|&i| -gradient[i]).collect();
    let moves = solve(matrix, right)?;
    let mut next = at.to_vec();
    for (&index, change) in free.iter().zip(moves) {
        next[index] = (at[index] + change).clamp(parameters[index].low, parameters[index].high);
    }
    (next != at).then_some(next)
}

/// Solves a linear system by Gaussian elimination with pivots; `None` if the matrix is singular.
pub fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let n = right.len();
    for column in 0..n {
        let pivot =
            (column..n).max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        if matrix[pivot][column].abs() < 1e-300 || !matrix[pivot][column].is_finite() {
            return None;
        }
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let (above, below) = matrix.split_at_mut(column + 1);
        let head = &above[column];
        for (offset, row) in below.iter_mut().enumerate() {
            let factor = row[column] / head[column];
            for (cell, value) in row.iter_mut().zip(head).skip(column) {
                *cell -= factor * value;
            }
            right[column + 1 + offset] -= factor * right[column];
        }
    }
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|column| matrix[row][column] * right[column]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    Some(right)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn half_square(values: &[f64]) -> f64 {
    let sum = dot(values, values) / 2.0;
    if sum.is_finite() { sum } else { f64::INFINITY }
}
