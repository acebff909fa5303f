//! Sections of machine files: tables that know their position in the text.

use std::{fmt, ops::Range};

use serde::Deserialize;
use thiserror::Error;
use toml::{
    Spanned,
    de::{DeTable, DeValue, ValueDeserializer},
};

use crate::{PlanError, plan_error::Refusal};

/// A table of a machine file, with its position in the file's text.
#[derive(Clone, Debug)]
pub struct Section<'f> {
    span: Range<usize>,
    table: DeTable<'f>,
}

impl<'f> Section<'f> {
    /// Returns the section of a table.
    pub fn new(table: Spanned<DeTable<'f>>) -> Self {
        Self { span: table.span(), table: table.into_inner() }
    }

    /// Returns the section of a value that should be a table. `description` names it in the error.
    ///
    /// # Errors
    /// The value is no table.
    pub fn from_value(value: Spanned<DeValue<'f>>, description: &str) -> Result<Self, SectionError> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Ok(Self { span, table }),
            _ => Err(SectionError::syntax(span, format!("expected tables {description}"))),
        }
    }

    /// Returns the byte range of the table's header in the file's text.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns the table as a value of type `T`. A field of type [`Spanned`] knows its position,
    /// for [`check_range`] and [`refuse_value`].
    ///
    /// # Errors
    /// A field is missing, has another type, or is unknown to a type with `deny_unknown_fields`.
    pub fn parse<T: Deserialize<'f>>(&self) -> Result<T, SectionError> {
        let table = Spanned::new(self.span(), DeValue::Table(self.table.clone()));
        read(table)
    }

    /// Removes a key from the table, and returns its value.
    ///
    /// # Errors
    /// The key is missing, or its value has another type.
    pub fn take<T: Deserialize<'f>>(&mut self, key: &str) -> Result<T, SectionError> {
        self.take_if_any(key)?
            .ok_or_else(|| SectionError::syntax(self.span(), format!("missing field `{key}`")))
    }

    /// Removes a key from the table, and returns its value, or `None` if there is no such key.
    ///
    /// # Errors
    /// The value has another type.
    pub fn take_if_any<T: Deserialize<'f>>(&mut self, key: &str) -> Result<Option<T>, SectionError> {
        self.table.remove(key).map(read).transpose()
    }

    /// Removes a key from the table, and returns the sections of its array of tables, which is
    /// empty if there is no such key.
    ///
    /// # Errors
    /// The value is no array of tables.
    pub fn take_sections(&mut self, key: &str) -> Result<Vec<Self>, SectionError> {
        let Some(value) = self.table.remove(key) else { return Ok(Vec::new()) };
        let description = format!("[[{key}]]");
        let span = value.span();

        match value.into_inner() {
            DeValue::Array(values) => {
                values.into_iter().map(|value| Self::from_value(value, &description)).collect()
            }
            _ => Err(SectionError::syntax(span, format!("expected tables {description}"))),
        }
    }

    /// Refuses a table that still has a key. `expected` names the keys that are possible.
    ///
    /// # Errors
    /// There is a key. The error names its line.
    pub fn finish(self, expected: &[&str]) -> Result<(), SectionError> {
        // The keys are in lexicographic order, and the error names the first one in the file.
        let Some(key) = self.table.keys().min_by_key(|key| key.span().start) else { return Ok(()) };

        let known: Vec<String> = expected.iter().map(|name| format!("`{name}`")).collect();
        let message = format!("unknown field `{}`, expected one of {}", key.get_ref(), known.join(", "));
        Err(SectionError::syntax(key.span(), message))
    }

    /// Returns the error of a plan that refuses this section's values.
    pub fn refuse(&self, error: PlanError) -> SectionError {
        error.at(self.span())
    }
}

/// Reads a value of type `T`. An error has the position of its field in the file's text.
fn read<'f, T: Deserialize<'f>>(value: Spanned<DeValue<'f>>) -> Result<T, SectionError> {
    T::deserialize(ValueDeserializer::from(value))
        .map_err(|error| SectionError::Syntax { span: error.span(), message: error.message().to_owned() })
}

/// The reason why a section of a machine file is refused, and its position in the file's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SectionError {
    /// The table does not have the right form: a field is missing, unknown, or of another type.
    #[error("{message}")]
    Syntax {
        /// Byte range in the file's text.
        span: Option<Range<usize>>,
        /// The reason.
        message: String,
    },
    /// A value is out of its limits.
    #[error("{what} is {found}; expected {expected}")]
    Value {
        /// Byte range in the file's text.
        span: Option<Range<usize>>,
        /// Name of the value.
        what: String,
        /// The value in the file.
        found: String,
        /// The expected values.
        expected: String,
    },
}

impl SectionError {
    /// Returns an error of a table's form.
    pub fn syntax(span: Range<usize>, message: impl Into<String>) -> Self {
        Self::Syntax { span: Some(span), message: message.into() }
    }

    /// Returns the error of a value. Its message is "`description` is `found`; expected
    /// `expected`".
    pub fn value(
        span: Range<usize>,
        description: impl Into<String>,
        found: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Value {
            span: Some(span),
            what: description.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// Returns the error with the position `position`, unless it has one already.
    #[must_use]
    pub fn or_at(mut self, position: Range<usize>) -> Self {
        match &mut self {
            Self::Syntax { span, .. } | Self::Value { span, .. } => span.get_or_insert(position),
        };
        self
    }

    /// Returns the byte range of the error in the file's text, if the error has one.
    pub fn span(&self) -> Option<Range<usize>> {
        match self {
            Self::Syntax { span, .. } | Self::Value { span, .. } => span.clone(),
        }
    }
}

/// The error of a plan, without a position. The message names the line of the family's first
/// section.
impl From<PlanError> for SectionError {
    fn from(error: PlanError) -> Self {
        let Refusal { quantity, found, expected } = error.refusal();
        Self::Value { span: None, what: quantity, found, expected }
    }
}

/// Returns the error of a value, at the value's own line.
pub fn refuse_value<T: fmt::Display>(
    description: &str,
    value: &Spanned<T>,
    expected: impl Into<String>,
) -> SectionError {
    SectionError::value(value.span(), description, value.get_ref(), expected)
}

/// Returns a value of the file that must be at least `minimum` and at most `maximum`.
///
/// # Errors
/// The value is outside this range.
pub fn check_range<T: PartialOrd + fmt::Display + Copy>(
    description: &str,
    value: &Spanned<T>,
    minimum: T,
    maximum: T,
) -> Result<T, SectionError> {
    let found = *value.get_ref();
    if found >= minimum && found <= maximum {
        Ok(found)
    } else {
        Err(refuse_value(description, value, format!("{minimum} to {maximum}")))
    }
}

/// Returns a value of the file that must be at least `minimum` and at most `maximum`, or `default`
/// if the file leaves it out.
///
/// # Errors
/// The value is outside this range.
pub fn range_or<T: PartialOrd + fmt::Display + Copy>(
    description: &str,
    value: Option<&Spanned<T>>,
    (minimum, maximum): (T, T),
    default: T,
) -> Result<T, SectionError> {
    value.map_or(Ok(default), |value| check_range(description, value, minimum, maximum))
}

/// Returns a list of the file that must have `count` values, or an empty one if the file leaves it
/// out.
///
/// # Errors
/// The list has another length.
pub fn list_of<'a, T>(
    description: &str,
    list: Option<&'a Spanned<Vec<T>>>,
    count: usize,
) -> Result<&'a [T], SectionError> {
    match list {
        None => Ok(&[]),
        Some(list) if list.get_ref().len() == count => Ok(list.get_ref()),
        Some(list) => {
            let (description, found) = (format!("{description}'s length"), list.get_ref().len());
            Err(SectionError::value(list.span(), description, found, format!("{count} values")))
        }
    }
}
