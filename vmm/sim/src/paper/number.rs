//! The rounding of numbers.

/// Returns a value rounded to a number of decimals. Zero has no minus sign.
pub(crate) fn rounded(value: f64, decimals: usize) -> f64 {
    let scale = 10_f64.powi(decimals as i32);
    // The sum of -0.0 and 0.0 is 0.0.
    (value * scale).round() / scale + 0.0
}
