//! Figures as SVG: the paper's points as circles, the simulated values as a line with dots.
//!
//! The texts name a generic font, which the viewer chooses, so that no font is needed here.

use std::{fs, ops::Range, path::Path};

use nicforge::failure::{ErrorContext, Failure};
use plotters::{
    chart::{ChartBuilder, ChartContext, SeriesLabelPosition},
    coord::{
        Shift,
        cartesian::Cartesian2d,
        ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter},
    },
    drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea},
    element::{Circle, PathElement},
    prelude::SVGBackend,
    series::LineSeries,
    style::{BLACK, Color, RGBColor, WHITE},
};

use super::{
    figure::{Axis, Figure, Point, Scale, Series},
    table::Table,
};

/// Pixels of a plot: width and height.
const SIZE: (u32, u32) = (760, 480);
/// The font of all texts.
const FONT: &str = "sans-serif";
/// Radii in pixels of the paper's points, and of the simulated ones.
const PAPER_RADIUS: i32 = 5;
const SIMULATED_RADIUS: u32 = 2;
/// Length in pixels of the line that stands for a series in the legend.
const LEGEND_LENGTH: i32 = 18;
/// The colours of the series, which are told apart with red-green blindness, too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
/// The number of ticks that an axis has at most.
const MAX_TICKS: usize = 12;
/// The exponents that a logarithmic axis can show: those of finite numbers.
const EXPONENTS: Range<f64> = -1000.0..1000.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<PlotAxis, PlotAxis>>;
type DrawResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Creates the directory of figures if it is missing.
///
/// # Errors
/// Returns an error when that fails.
pub fn make_directory(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory).context(|| format!("can't make the directory {}", directory.display()))
}

/// Writes each figure of a table into a directory, as `PAPER-FIGURE.svg`. The directory is created
/// if it is missing.
///
/// # Errors
/// Returns an error when a file cannot be written.
pub fn write(table: &Table, directory: &Path) -> Result<(), Failure> {
    make_directory(directory)?;

    for figure in &table.figures {
        let path = directory.join(format!("{}-{}.svg", table.name, figure.name));
        let picture = svg(figure, table)?;
        fs::write(&path, picture).context(|| format!("can't write {}", path.display()))?;
    }

    Ok(())
}

/// Returns a figure of a table as SVG. Its heading names the mechanisms that the run lacked.
///
/// # Errors
/// Returns an error when the figure cannot be drawn.
pub fn svg(figure: &Figure, table: &Table) -> Result<String, Failure> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    draw(figure, &heading(figure, table), &area).context(|| format!("can't draw {}", figure.name))?;

    drop(area);
    Ok(text)
}

/// Returns the title of a figure, with the mechanisms that the run lacked.
fn heading(figure: &Figure, table: &Table) -> String {
    match table.without.as_slice() {
        [] => figure.title.clone(),
        names => format!("{}, WITHOUT {}", figure.title, names.join(" and ")),
    }
}

/// Draws a figure: its axes, its series, and their labels.
fn draw(figure: &Figure, heading: &str, area: &Area<'_>) -> DrawResult {
    let points = |coordinate: fn(&Point) -> f64| {
        let of_series = |series: &Series| {
            series.paper.iter().chain(&series.simulated).map(coordinate).collect::<Vec<_>>()
        };
        figure.series.iter().flat_map(of_series).collect::<Vec<_>>()
    };
    let x = PlotAxis::new(&figure.x, &points(|point| point.0));
    let y = PlotAxis::new(&figure.y, &points(|point| point.1));

    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(heading, (FONT, 20))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(x.clone(), y.clone())?;

    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(figure.x.label.as_str())
        .y_desc(figure.y.label.as_str())
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .draw()?;

    for (series, colour) in figure.series.iter().zip(COLOURS.iter().cycle()) {
        draw_series(series, *colour, (&x, &y), &mut chart)?;
    }

    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .draw()?;
    area.present()
}

/// Draws a series: the paper's points as circles, the simulated values as a line.
fn draw_series(
    series: &Series,
    colour: RGBColor,
    (x, y): (&PlotAxis, &PlotAxis),
    chart: &mut Chart<'_, '_>,
) -> DrawResult {
    let positions = |points: &[Point]| {
        let position = |point: &Point| Some((x.position(point.0)?, y.position(point.1)?));
        points.iter().filter_map(position).collect::<Vec<_>>()
    };
    let (paper, simulated) = (positions(&series.paper), positions(&series.simulated));

    if !paper.is_empty() {
        chart
            .draw_series(
                paper.iter().map(|&position| Circle::new(position, PAPER_RADIUS, colour.stroke_width(1))),
            )?
            .label(format!("{}, paper", series.label))
            .legend(move |(left, middle)| {
                Circle::new((left + LEGEND_LENGTH / 2, middle), PAPER_RADIUS, colour.stroke_width(1))
            });
    }
    if !simulated.is_empty() {
        chart
            .draw_series(LineSeries::new(simulated, colour.stroke_width(2)).point_size(SIMULATED_RADIUS))?
            .label(format!("{}, ours", series.label))
            .legend(move |(left, middle)| {
                PathElement::new([(left, middle), (left + LEGEND_LENGTH, middle)], colour.stroke_width(2))
            });
    }

    Ok(())
}

/// An axis of a drawing. Positions along it are the values themselves, or their logarithms.
#[derive(Clone, Debug)]
struct PlotAxis {
    scale: Scale,
    /// The first and the last position.
    range: Range<f64>,
    /// The positions of the ticks.
    ticks: Vec<f64>,
}

impl PlotAxis {
    /// Returns an axis that has room for all values that the scale can show.
    fn new(axis: &Axis, values: &[f64]) -> Self {
        let mut plotted = Self { scale: axis.scale, range: 0.0..1.0, ticks: Vec::new() };
        let positions: Vec<_> = values.iter().filter_map(|&value| plotted.position(value)).collect();
        let low = positions.iter().copied().fold(f64::INFINITY, f64::min);
        let high = positions.iter().copied().fold(f64::NEG_INFINITY, f64::max);

        if low <= high {
            // A linear axis includes zero, and has some room above the highest value.
            plotted.range = match axis.scale {
                Scale::Linear => low.min(0.0)..high.max(0.0) + 0.05 * high.abs(),
                Scale::Log2 | Scale::Log10 => low.floor()..high.ceil(),
            };
        }
        // An axis of one value still needs a length.
        if plotted.range.end <= plotted.range.start {
            plotted.range.end = plotted.range.start + 1.0;
        }

        plotted.ticks = ticks(&plotted.range, axis.scale);
        plotted
    }

    /// Returns the position of a value, unless the axis cannot show it.
    fn position(&self, value: f64) -> Option<f64> {
        match self.scale {
            Scale::Linear => value.is_finite().then_some(value),
            Scale::Log2 => Some(value.log2()).filter(|exponent| EXPONENTS.contains(exponent)),
            Scale::Log10 => Some(value.log10()).filter(|exponent| EXPONENTS.contains(exponent)),
        }
    }

    /// Returns the text of a tick.
    fn tick_text(&self, position: f64) -> String {
        match self.scale {
            Scale::Linear => decimal_text(position),
            Scale::Log2 => size_text(position.exp2()),
            Scale::Log10 => decimal_text(10_f64.powf(position)),
        }
    }
}

impl Ranged for PlotAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    /// Returns the pixel of a position on an axis that is drawn from one pixel to another.
    fn map(&self, position: &f64, (first, last): (i32, i32)) -> i32 {
        let part = (position - self.range.start) / (self.range.end - self.range.start);
        first + (f64::from(last - first) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // The grid has bold lines at the ticks, and no light lines between them.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for PlotAxis {
    fn format_ext(&self, position: &f64) -> String {
        self.tick_text(*position)
    }
}

/// Returns the positions of an axis's ticks: whole exponents, or steps of 1, 2 or 5 times a power
/// of ten.
fn ticks(range: &Range<f64>, scale: Scale) -> Vec<f64> {
    let length = range.end - range.start;
    let step = match scale {
        // The least step with at most MAX_TICKS ticks. With a step of `power`, there are fewer.
        Scale::Linear => {
            let power = 10_f64.powf((length / MAX_TICKS as f64).log10().ceil());
            [0.2, 0.5, 1.0]
                .map(|part| part * power)
                .into_iter()
                .find(|step| length / step <= MAX_TICKS as f64)
        }
        Scale::Log2 | Scale::Log10 => Some((length / MAX_TICKS as f64).ceil()),
    };

    let step = step.unwrap_or(length);
    let first = (range.start / step).ceil();
    (0..=MAX_TICKS).map(|index| (first + index as f64) * step).filter(|tick| *tick <= range.end).collect()
}

/// Formats the value of a tick with a suffix for thousands, and without the rounding errors of its
/// computation.
fn decimal_text(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, " G"),
        large if large >= 1e6 => (value / 1e6, " M"),
        large if large >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };

    let rounded = (value * 1e6).round() / 1e6;
    format!("{rounded}{suffix}")
}

/// Formats a power of two with a suffix for powers of 1024, as sizes in bytes are written.
fn size_text(value: f64) -> String {
    let units = [(1 << 30, " G"), (1 << 20, " M"), (1 << 10, " K")];
    let unit = units.into_iter().find(|&(unit, _)| value >= f64::from(unit));
    unit.map_or_else(|| decimal_text(value), |(unit, suffix)| format!("{}{suffix}", value / f64::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the range and the texts of the ticks of an axis for these values.
    fn plotted(scale: Scale, values: &[f64]) -> (Range<f64>, Vec<String>) {
        let plotted = PlotAxis::new(&Axis::new("", scale), values);
        let ticks = plotted.ticks.iter().map(|&position| plotted.tick_text(position)).collect();
        (plotted.range, ticks)
    }

    #[test]
    fn linear_axis_begins_at_zero_and_has_round_ticks() {
        let (range, ticks) = plotted(Scale::Linear, &[2.1, 6.54]);
        assert_eq!(range.start, 0.0);
        assert!(range.end > 6.54, "{range:?}");
        assert_eq!(ticks, ["0", "1", "2", "3", "4", "5", "6"]);
    }

    #[test]
    fn logarithmic_axis_has_whole_powers_and_leaves_out_what_it_cannot_show() {
        let sizes = plotted(Scale::Log2, &[0.0, -1.0, f64::NAN, f64::INFINITY, 512.0, 3000.0]);
        assert_eq!(sizes, (9.0..12.0, ["512", "1 K", "2 K", "4 K"].map(str::to_owned).into()));

        let (_, rates) = plotted(Scale::Log10, &[0.02, 20_000.0]);
        assert_eq!(rates, ["0.01", "0.1", "1", "10", "100", "1000", "10 k", "100 k"]);
    }

    #[test]
    fn axis_has_a_bounded_number_of_ticks_and_a_length_whatever_its_values() {
        for values in [&[][..], &[0.0], &[-5.0], &[1e-300, 1e300], &[f64::NAN]] {
            for scale in [Scale::Linear, Scale::Log2, Scale::Log10] {
                let (range, ticks) = plotted(scale, values);
                assert!(range.end > range.start, "{scale:?} {values:?}");
                assert!(ticks.len() <= MAX_TICKS + 1, "{scale:?} {values:?}");
            }
        }
    }
}
