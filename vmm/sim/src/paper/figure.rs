//! A figure of a paper: its points, and the simulated points.

use serde::Serialize;

/// The spacing of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Equal differences have equal lengths. The axis includes zero.
    Linear,
    /// Equal ratios have equal lengths; the axis is marked at powers of two.
    Log2,
    /// Equal ratios have equal lengths; the axis is marked at powers of ten.
    Log10,
}

/// An axis of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// The quantity and its unit, such as `message size (bytes)`.
    pub label: String,
    /// The spacing. A logarithmic axis shows positive values only.
    pub scale: Scale,
}

impl Axis {
    /// Returns an axis.
    pub fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self { label: label.into(), scale }
    }
}

/// A point of a figure: x and y.
pub type Point = (f64, f64);

/// A curve, with the paper's points and the simulated points. Either may be empty.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The curve's name.
    pub label: String,
    /// The paper's points.
    pub paper: Vec<Point>,
    /// Our points, in the order of their line.
    pub simulated: Vec<Point>,
}

impl Series {
    /// Returns a curve.
    pub fn new(
        label: impl Into<String>,
        paper: impl Into<Vec<Point>>,
        simulated: impl Into<Vec<Point>>,
    ) -> Self {
        Self { label: label.into(), paper: paper.into(), simulated: simulated.into() }
    }
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The word for it in the names of files, such as `bandwidth`.
    pub name: &'static str,
    /// The heading.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
}
