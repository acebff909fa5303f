//! The rule by which a row of a paper's table is judged: its role in the model, its tolerance or
//! bound, and the null model.

use std::fmt;

use serde::Serialize;

/// The part that the paper's value of a row has in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A cost of the model was chosen so that the row holds.
    Calibrates,
    /// The value follows from calibrated rows by the paper's own arithmetic.
    Derived,
    /// No cost was chosen by this row.
    Predicted,
}

impl Role {
    /// Returns the name, which is also the one in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calibrates => "calibrates",
            Self::Derived => "derived",
            Self::Predicted => "predicted",
        }
    }
}

/// The greatest difference between the paper's value and the simulated value with which a row
/// holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tolerance {
    /// Percent of the paper's value.
    Percent(f64),
    /// Percentage points. The row's unit must be `%`.
    Points(f64),
    /// Microseconds. The row's unit must be `us`.
    Microseconds(f64),
}

impl Tolerance {
    /// Returns the tolerance around `paper` in the unit of the row.
    pub(super) fn width(self, paper: f64) -> f64 {
        match self {
            Self::Percent(percent) => paper.abs() * percent / 100.0,
            Self::Points(width) | Self::Microseconds(width) => width,
        }
    }

    /// Returns the unit that rows with this tolerance must have.
    pub(super) fn unit(self) -> Option<&'static str> {
        match self {
            Self::Percent(_) => None,
            Self::Points(_) => Some("%"),
            Self::Microseconds(_) => Some("us"),
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(text, "{percent} %"),
            Self::Points(1.0) => write!(text, "1 point"),
            Self::Points(points) => write!(text, "{points} points"),
            Self::Microseconds(time) => write!(text, "{time} us"),
        }
    }
}

/// The rule by which a row holds or is out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The row is only shown.
    Unjudged,
    /// The simulated value differs from the paper's by at most this.
    Within(Tolerance),
    /// The simulated value is not below the paper's.
    AtLeast,
    /// The simulated value is not above the paper's.
    AtMost,
    /// The simulated value is above the paper's: it says which of two things is more.
    Above,
    /// The simulated value is below the paper's.
    Below,
}

/// The value that a model without a mechanism gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NullModel {
    /// The missing mechanism, such as `protocol bytes`.
    pub without: String,
    /// Its value, in the unit of the row.
    pub value: f64,
}
