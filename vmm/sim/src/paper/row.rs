//! A row of a paper's table: an expected value, and the measured one beside it.

use nicforge::failure::Failure;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use thiserror::Error;

use super::{
    judgement::{Judgement, NullModel, Role, Tolerance},
    number::rounded,
};

/// A row before it is measured: the paper's value, and the rule by which the simulated value is
/// judged.
///
/// A row that is judged must be able to fail: the null model's value must be out. A tolerance is
/// therefore below half the distance between the paper's value and the null model's. A bound has
/// the null model on its other side, or at the bound where equality is out
/// ([`Judgement::Above`], [`Judgement::Below`]). A calibrating row may do without a null model,
/// because its cost was chosen. [`Row::new`] refuses other rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// The measured quantity. It is the row's name, too.
    pub what: String,
    /// The unit of all values, such as `us`, `Gb/s` or `%`.
    pub unit: &'static str,
    /// The paper's value, or the bound that the paper's text gives.
    pub paper: f64,
    /// The value of a model that lacks what the row is about.
    pub null_model: Option<NullModel>,
    /// The part of the value in the model.
    pub role: Role,
    /// The rule by which the row holds.
    pub judgement: Judgement,
    /// Whether `--quick` measures the row.
    pub quick: bool,
}

impl Expected {
    /// Returns an unjudged row by which a cost of the model was chosen.
    pub fn calibrates(description: impl Into<String>, unit: &'static str, paper: f64) -> Self {
        Self::new(Role::Calibrates, description.into(), unit, paper)
    }

    /// Returns an unjudged row that follows from calibrated ones.
    pub fn derived(description: impl Into<String>, unit: &'static str, paper: f64) -> Self {
        Self::new(Role::Derived, description.into(), unit, paper)
    }

    /// Returns an unjudged row by which no cost was chosen.
    pub fn predicted(description: impl Into<String>, unit: &'static str, paper: f64) -> Self {
        Self::new(Role::Predicted, description.into(), unit, paper)
    }

    /// Returns a row of this role that is unjudged and not measured by `--quick`.
    fn new(role: Role, description: String, unit: &'static str, paper: f64) -> Self {
        Self {
            what: description,
            unit,
            paper,
            null_model: None,
            role,
            judgement: Judgement::Unjudged,
            quick: false,
        }
    }

    /// Judges the row by the difference to the paper's value.
    #[must_use]
    pub fn within(self, tolerance: Tolerance) -> Self {
        Self { judgement: Judgement::Within(tolerance), ..self }
    }

    /// Judges the row by the paper's value as the least possible one.
    #[must_use]
    pub fn at_least(self) -> Self {
        Self { judgement: Judgement::AtLeast, ..self }
    }

    /// Judges the row by the paper's value as the greatest possible one.
    #[must_use]
    pub fn at_most(self) -> Self {
        Self { judgement: Judgement::AtMost, ..self }
    }

    /// Judges the row by the paper's value, which the simulated value must exceed. It fits a
    /// comparison, in which equality is the paper's bound and the null model at once.
    #[must_use]
    pub fn above(self) -> Self {
        Self { judgement: Judgement::Above, ..self }
    }

    /// Judges the row by the paper's value, below which the simulated value must be.
    #[must_use]
    pub fn below(self) -> Self {
        Self { judgement: Judgement::Below, ..self }
    }

    /// Sets the value of a model without a mechanism.
    #[must_use]
    pub fn null_model(self, without: impl Into<String>, value: f64) -> Self {
        Self { null_model: Some(NullModel { without: without.into(), value }), ..self }
    }

    /// Makes it a row that `--quick` measures, too.
    #[must_use]
    pub fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    /// Returns whether the row can be out.
    pub fn is_judged(&self) -> bool {
        self.judgement != Judgement::Unjudged
    }

    /// Checks that the row is able to fail, by the rule of [`Expected`].
    ///
    /// # Errors
    /// Returns the defect of the row.
    pub fn check(&self) -> Result<(), RowError> {
        let description = || self.what.clone();
        let null_model = self.null_model.as_ref().map(|model| model.value);
        if !self.paper.is_finite() || null_model.is_some_and(|value| !value.is_finite()) {
            return Err(RowError::NoNumber { what: description() });
        }
        if self.is_judged() && null_model.is_none() && self.role != Role::Calibrates {
            return Err(RowError::NoNullModel { what: description(), role: self.role.name() });
        }

        let distance = null_model.map(|value| self.paper - value);
        match self.judgement {
            Judgement::Unjudged => Ok(()),
            Judgement::Within(tolerance) => self.check_tolerance(tolerance, distance),
            Judgement::AtLeast if distance.is_some_and(|distance| distance <= 0.0) => {
                Err(RowError::BoundAllowsNullModel { what: description() })
            }
            Judgement::AtMost if distance.is_some_and(|distance| distance >= 0.0) => {
                Err(RowError::BoundAllowsNullModel { what: description() })
            }
            Judgement::Above if distance.is_some_and(|distance| distance < 0.0) => {
                Err(RowError::BoundAllowsNullModel { what: description() })
            }
            Judgement::Below if distance.is_some_and(|distance| distance > 0.0) => {
                Err(RowError::BoundAllowsNullModel { what: description() })
            }
            Judgement::AtLeast | Judgement::AtMost | Judgement::Above | Judgement::Below => Ok(()),
        }
    }

    /// Checks that a tolerance has the unit of the row and a width, which is below half of
    /// `distance`, by which the null model's value differs, if there is a null model.
    fn check_tolerance(&self, tolerance: Tolerance, distance: Option<f64>) -> Result<(), RowError> {
        let description = || self.what.clone();
        if let Some(needed) = tolerance.unit().filter(|&unit| unit != self.unit) {
            return Err(RowError::Unit { what: description(), tolerance, needed, unit: self.unit });
        }

        let width = tolerance.width(self.paper);
        if !width.is_finite() || width <= 0.0 {
            return Err(RowError::NoWidth { what: description(), tolerance });
        }

        let limit = distance.map_or(f64::INFINITY, |distance| distance.abs() / 2.0);
        if width < limit {
            return Ok(());
        }

        // The message says 5.6 instead of 5.6000000000000005.
        let (width, limit) = (rounded(width, 9), rounded(limit, 9));
        Err(RowError::TooWide { what: description(), tolerance, width, unit: self.unit, limit })
    }
}

/// A row whose judgement could not fail, or means nothing.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RowError {
    /// The paper's value or the null model's is infinite or no number.
    #[error("row \"{what}\": the paper's value or the null model's is no finite number")]
    NoNumber {
        /// The row.
        what: String,
    },
    /// The row is judged, and nothing says with which value it must fail.
    #[error("row \"{what}\" is {role} and judged: give it the value of a null model, or leave it unjudged")]
    NoNullModel {
        /// The row.
        what: String,
        /// The name of its role.
        role: &'static str,
    },
    /// The tolerance is zero, negative or no number.
    #[error("row \"{what}\": a tolerance of {tolerance} has no width")]
    NoWidth {
        /// The row.
        what: String,
        /// Its tolerance.
        tolerance: Tolerance,
    },
    /// The tolerance is of another unit than the row.
    #[error("row \"{what}\": a tolerance of {tolerance} needs the unit {needed}, and the row has {unit}")]
    Unit {
        /// The row.
        what: String,
        /// Its tolerance.
        tolerance: Tolerance,
        /// The unit of rows with such a tolerance.
        needed: &'static str,
        /// The row's unit.
        unit: &'static str,
    },
    /// The null model would come too near to hold.
    #[error(
        "row \"{what}\": a tolerance of {tolerance} is {width} {unit} and must be below {limit} {unit}, \
         half the distance to the null model"
    )]
    TooWide {
        /// The row.
        what: String,
        /// Its tolerance.
        tolerance: Tolerance,
        /// The tolerance in the row's unit.
        width: f64,
        /// The row's unit.
        unit: &'static str,
        /// Half the distance to the null model, in the row's unit.
        limit: f64,
    },
    /// The experiment does not name the row among its rows, which are checked before it runs.
    #[error("row \"{what}\" is not among the rows that its experiment names")]
    Unnamed {
        /// The row.
        what: String,
    },
    /// The null model is on the allowed side of the bound.
    #[error("row \"{what}\": the null model is on the allowed side of the bound")]
    BoundAllowsNullModel {
        /// The row.
        what: String,
    },
}

impl From<RowError> for Failure {
    fn from(error: RowError) -> Self {
        Self::result(error.to_string())
    }
}

/// A row with the simulated value.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    expected: Expected,
    simulated: f64,
}

impl Row {
    /// Returns the row of a measured value, which is in the unit of the row.
    ///
    /// # Errors
    /// Returns an error when the row cannot fail ([`Expected::check`]).
    pub fn new(expected: Expected, simulated: f64) -> Result<Self, RowError> {
        expected.check()?;
        Ok(Self { expected, simulated })
    }

    /// Returns the paper's side of the row.
    pub fn expected(&self) -> &Expected {
        &self.expected
    }

    /// Returns the simulated value.
    pub fn simulated(&self) -> f64 {
        self.simulated
    }

    /// Returns the simulated value minus the paper's, in the unit of the row.
    pub fn difference(&self) -> f64 {
        self.simulated - self.expected.paper
    }

    /// Returns the difference in percent of the paper's value, unless that is zero.
    pub fn error_percent(&self) -> Option<f64> {
        let paper = self.expected.paper;
        (paper != 0.0).then(|| 100.0 * self.difference() / paper.abs())
    }

    /// Returns whether the row holds, or `None` for an unjudged row. A value that is no number is
    /// out.
    pub fn holds(&self) -> Option<bool> {
        let paper = self.expected.paper;
        match self.expected.judgement {
            Judgement::Unjudged => None,
            Judgement::Within(tolerance) => Some(self.difference().abs() <= tolerance.width(paper)),
            Judgement::AtLeast => Some(self.simulated >= paper),
            Judgement::AtMost => Some(self.simulated <= paper),
            Judgement::Above => Some(self.simulated > paper),
            Judgement::Below => Some(self.simulated < paper),
        }
    }
}

/// The fields are those of the expected value, and `ours` (the simulated value), `difference`,
/// `error_percent` and `holds`.
impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let expected = &self.expected;
        let mut row = serializer.serialize_struct("Row", 11)?;

        row.serialize_field("what", &expected.what)?;
        row.serialize_field("unit", expected.unit)?;
        row.serialize_field("paper", &expected.paper)?;
        row.serialize_field("ours", &self.simulated)?;
        row.serialize_field("difference", &self.difference())?;
        row.serialize_field("error_percent", &self.error_percent())?;
        row.serialize_field("null_model", &expected.null_model)?;
        row.serialize_field("role", &expected.role)?;
        row.serialize_field("judgement", &expected.judgement)?;
        row.serialize_field("quick", &expected.quick)?;
        row.serialize_field("holds", &self.holds())?;

        row.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an unjudged row whose null model is 11.2 us away.
    fn latency() -> Expected {
        Expected::predicted("latency", "us", 13.3).null_model("software cost", 2.1)
    }

    #[test]
    fn tolerance_must_be_below_half_the_distance_to_the_null_model() {
        // Half of the distance of 11.2 us is 5.6 us.
        let width = |tolerance| latency().within(tolerance).check();

        assert_eq!(width(Tolerance::Microseconds(5.5)), Ok(()));
        assert!(matches!(width(Tolerance::Microseconds(5.7)), Err(RowError::TooWide { .. })));
        assert_eq!(width(Tolerance::Percent(42.0)), Ok(()));
        assert!(matches!(width(Tolerance::Percent(42.2)), Err(RowError::TooWide { .. })));
    }

    #[test]
    fn row_with_a_tolerance_that_cannot_fail_is_refused_with_its_values() {
        let refused = Row::new(latency().within(Tolerance::Percent(50.0)), 13.3).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "row \"latency\": a tolerance of 50 % is 6.65 us and must be below 5.6 us, \
             half the distance to the null model"
        );
    }

    #[test]
    fn judged_row_needs_a_null_model_unless_it_calibrates() {
        let tolerance = Tolerance::Percent(1.0);
        let predicted = Expected::predicted("a", "us", 1.0).within(tolerance).check();
        let derived = Expected::derived("a", "us", 1.0).at_least().check();

        assert!(matches!(predicted, Err(RowError::NoNullModel { role: "predicted", .. })));
        assert!(matches!(derived, Err(RowError::NoNullModel { role: "derived", .. })));
        assert_eq!(Expected::calibrates("a", "us", 1.0).within(tolerance).check(), Ok(()));
        assert_eq!(Expected::predicted("a", "us", 1.0).check(), Ok(()));
    }

    #[test]
    fn absolute_tolerance_needs_its_unit() {
        let points = latency().within(Tolerance::Points(1.0)).check();
        let time = Expected::calibrates("share", "%", 86.0).within(Tolerance::Microseconds(1.0)).check();

        assert!(matches!(points, Err(RowError::Unit { needed: "%", unit: "us", .. })));
        assert!(matches!(time, Err(RowError::Unit { needed: "us", unit: "%", .. })));
    }

    #[test]
    fn tolerance_without_width_and_values_that_are_no_numbers_are_refused() {
        for width in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = latency().within(Tolerance::Percent(width)).check();
            assert!(matches!(refused, Err(RowError::NoWidth { .. })), "{width}");
        }

        let zero = Expected::calibrates("zero", "us", 0.0).within(Tolerance::Percent(1.0)).check();
        assert!(matches!(zero, Err(RowError::NoWidth { .. })));
        let null_model = latency().null_model("nothing", f64::NAN).check();
        assert!(matches!(null_model, Err(RowError::NoNumber { .. })));
    }

    #[test]
    fn bound_must_lie_between_the_null_model_and_the_allowed_side() {
        assert_eq!(latency().at_least().check(), Ok(()));
        assert!(matches!(latency().at_most().check(), Err(RowError::BoundAllowsNullModel { .. })));
        let equal = latency().null_model("nothing", 13.3);
        assert!(matches!(equal.clone().at_least().check(), Err(RowError::BoundAllowsNullModel { .. })));
        assert!(matches!(equal.clone().at_most().check(), Err(RowError::BoundAllowsNullModel { .. })));

        assert_eq!([equal.clone().above().check(), equal.below().check()], [Ok(()), Ok(())]);
        assert_eq!(latency().above().check(), Ok(()));
        assert!(matches!(latency().below().check(), Err(RowError::BoundAllowsNullModel { .. })));
        let larger = latency().null_model("nothing", 13.4);
        assert!(matches!(larger.above().check(), Err(RowError::BoundAllowsNullModel { .. })));
    }

    #[test]
    fn row_holds_inside_its_tolerance_or_on_the_allowed_side_of_its_bound() {
        let holds = |expected: &Expected, simulated| Row::new(expected.clone(), simulated).unwrap().holds();
        let relative = latency().within(Tolerance::Percent(1.0));
        let absolute = latency().within(Tolerance::Microseconds(0.2));
        let minimum = latency().at_least();

        assert_eq!(
            [13.2, 13.4, 13.1, 13.5].map(|simulated| holds(&relative, simulated)),
            [true, true, false, false].map(Some)
        );
        assert_eq!(
            [13.15, 13.45, 13.0, 13.6].map(|simulated| holds(&absolute, simulated)),
            [true, true, false, false].map(Some)
        );
        assert_eq!(
            [13.3, 99.0, 13.2].map(|simulated| holds(&minimum, simulated)),
            [true, true, false].map(Some)
        );
        let (above, below) = (latency().above(), latency().null_model("nothing", 13.3).below());
        assert_eq!([13.3, 13.4].map(|simulated| holds(&above, simulated)), [false, true].map(Some));
        assert_eq!([13.3, 13.2].map(|simulated| holds(&below, simulated)), [false, true].map(Some));
        assert_eq!(holds(&latency(), 99.0), None);
    }

    #[test]
    fn value_that_is_no_number_is_out() {
        for expected in [latency().within(Tolerance::Percent(1.0)), latency().at_least()] {
            assert_eq!(Row::new(expected, f64::NAN).unwrap().holds(), Some(false));
        }
    }
}
