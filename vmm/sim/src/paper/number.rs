//! The rounding of numbers.

/// Returns a value rounded to a number of decimals, and zero without a sign.
pub(crate) fn rounded(value: f64, decimals: usize) -> f64 {
    let scale = 10_f64.powi(decimals as i32);
    (value * scale).round() / scale + 0.0
}
