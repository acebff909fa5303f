//! The pictures of the book, drawn from text (`docs/pictures/*.toml` and `docs/rooms.toml`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    rooms,
    steps::Failed,
    svg::{LINE, Svg},
};

/// The folder of the texts.
const SOURCES: &str = "docs/pictures";
/// The folder of the drawn pictures.
const PICTURES: &str = "docs/src/pictures";

/// A picture's source. Each kind has its own key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    title: String,
    #[serde(default)]
    bar: Vec<Bar>,
    #[serde(rename = "box", default)]
    boxes: Vec<Nested>,
    /// The columns of a sequence.
    #[serde(default)]
    actors: Vec<String>,
    /// The messages of a sequence: the numbers of sender and receiver, and the text.
    #[serde(default)]
    steps: Vec<(usize, usize, String)>,
}

/// A BAR and its areas, each with its offset, its contents, and how a client reaches it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bar {
    name: String,
    areas: Vec<(String, String, Reach)>,
}

/// How a client reaches an area.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reach {
    Trapped,
    Mapped,
    Mirrored,
}

impl Reach {
    /// Returns the colour of areas that are reached like this.
    fn colour(self) -> &'static str {
        match self {
            Self::Trapped => "#f8e6d8",
            Self::Mapped => "#dcefdc",
            Self::Mirrored => "#dde8f8",
        }
    }
}

/// A box with boxes in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nested {
    name: String,
    holds: Vec<String>,
    #[serde(rename = "box", default)]
    boxes: Vec<Nested>,
}

/// Draws all pictures.
pub(crate) fn write(root: &Path) -> Result<(), Failed> {
    for (path, text) in draw_all(root)? {
        fs::write(&path, text).map_err(|error| Failed::new(format!("{}: {error}", path.display())))?;
        eprintln!("    wrote {}", path.display());
    }
    Ok(())
}

/// Checks that the pictures of the book are up to date with the descriptions that they are drawn
/// from.
pub(crate) fn check(root: &Path) -> Result<(), Failed> {
    for (path, text) in draw_all(root)? {
        if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            let path = path.display();
            return Err(Failed::new(format!(
                "{path} is out of date; run `cargo xtask pictures` and commit it"
            )));
        }
    }
    Ok(())
}

/// Returns the path and the text of each picture.
fn draw_all(root: &Path) -> Result<Vec<(PathBuf, String)>, Failed> {
    let folder = root.join(SOURCES);
    let failed = |error: &dyn std::fmt::Display| Failed::new(format!("{}: {error}", folder.display()));
    let mut pictures = vec![(root.join(PICTURES).join("rooms.svg"), rooms::draw(root)?)];

    for entry in fs::read_dir(&folder).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        let source: Source =
            toml::from_str(&text).map_err(|error| Failed::new(format!("{}: {error}", path.display())))?;
        let name = Path::new(path.file_name().unwrap_or_default()).with_extension("svg");
        pictures.push((root.join(PICTURES).join(name), draw(&source)));
    }

    Ok(pictures)
}

/// Draws the picture of a source, whose kind depends on its keys.
fn draw(source: &Source) -> String {
    if !source.bar.is_empty() {
        draw_bars(&source.title, &source.bar)
    } else if !source.boxes.is_empty() {
        draw_boxes(&source.title, &source.boxes)
    } else {
        draw_sequence(&source.title, &source.actors, &source.steps)
    }
}

/// Draws BARs side by side, each as a column of its areas, and a key to the colours.
fn draw_bars(title: &str, bars: &[Bar]) -> String {
    /// Width of a column, height of an area, and space between columns.
    const WIDTH: usize = 190;
    const AREA: usize = 50;
    const GAP: usize = 12;
    let mut svg = Svg::new();

    for (column, bar) in bars.iter().enumerate() {
        let x = 10 + column * (WIDTH + GAP);
        svg.bold((x, 20), &bar.name);
        for (row, (offset, holds, reach)) in bar.areas.iter().enumerate() {
            let y = 30 + row * AREA;
            svg.rect((x, y), (WIDTH, AREA), reach.colour());
            svg.text((x + 6, y + LINE), offset);
            for (line, text) in wrapped(holds, 30).iter().enumerate() {
                svg.text((x + 6, y + LINE * 2 - 2 + line * 13), text);
            }
        }
    }

    let maximum = bars.iter().map(|bar| bar.areas.len()).max().unwrap_or(0);
    let y = 42 + maximum * AREA;
    for (column, (reach, name)) in
        [(Reach::Trapped, "trapped"), (Reach::Mapped, "mapped"), (Reach::Mirrored, "mirror: read only")]
            .into_iter()
            .enumerate()
    {
        let x = 10 + column * 130;
        svg.rect((x, y), (14, 14), reach.colour());
        svg.text((x + 20, y + 11), name);
    }

    svg.finish(title, (8 + bars.len() * (WIDTH + GAP), y + 24))
}

/// Draws actors as columns, and the messages between them from top to bottom.
fn draw_sequence(title: &str, actors: &[String], steps: &[(usize, usize, String)]) -> String {
    /// Distances of the columns and of the messages, and of the first column's middle from the
    /// edge.
    const COLUMN: usize = 210;
    const STEP: usize = 34;
    const FIRST_COLUMN: usize = 80;
    /// The box of an actor, at the top of its column.
    const BOX_WIDTH: usize = 130;
    const BOX_HEIGHT: usize = 24;
    const BOX_TOP: usize = 8;

    let mut svg = Svg::new();
    let middle = |actor: usize| FIRST_COLUMN + actor * COLUMN;
    let bottom = 50 + steps.len() * STEP;

    for (index, actor) in actors.iter().enumerate() {
        svg.rect((middle(index) - BOX_WIDTH / 2, BOX_TOP), (BOX_WIDTH, BOX_HEIGHT), "#eef3f8");
        svg.centred((middle(index), BOX_TOP + 16), actor);
        let (start, end) = ((middle(index), BOX_TOP + BOX_HEIGHT), (middle(index), bottom));
        svg.line(start, end, "stroke-dasharray=\"3 3\"");
    }

    for (index, (from, to, text)) in steps.iter().enumerate() {
        let y = 62 + index * STEP;
        svg.arrow((middle(*from), y), (middle(*to), y));
        svg.centred((middle(*from).midpoint(middle(*to)), y - 5), text);
    }

    svg.finish(title, (2 * FIRST_COLUMN + actors.len().saturating_sub(1) * COLUMN, bottom + 10))
}

/// Space around a box within another.
const MARGIN: usize = 10;
/// Width of a box without boxes in it.
const LEAF_WIDTH: usize = 280;

/// Draws boxes within boxes.
fn draw_boxes(title: &str, boxes: &[Nested]) -> String {
    let mut svg = Svg::new();
    let mut x = MARGIN;
    let mut height = 0;
    for nested in boxes {
        draw_box(&mut svg, nested, (x, MARGIN), 0);
        let (width, box_height) = size(nested);
        x += width + MARGIN;
        height = height.max(box_height);
    }
    svg.finish(title, (x, height + 2 * MARGIN))
}

/// Returns the width and height of a box.
fn size(nested: &Nested) -> (usize, usize) {
    let sizes: Vec<_> = nested.boxes.iter().map(size).collect();
    let inner = sizes.iter().map(|(width, _)| width + MARGIN).sum::<usize>() + MARGIN;
    let tallest = sizes.iter().map(|(_, height)| height + MARGIN).max().unwrap_or(0);
    (inner.max(LEAF_WIDTH), text_height(nested) + tallest)
}

/// Returns the height of a box's own text.
fn text_height(nested: &Nested) -> usize {
    LINE * (nested.holds.len() + 1) + MARGIN
}

/// Draws a box and all boxes in it. The depth selects its colour.
fn draw_box(svg: &mut Svg, nested: &Nested, (x, y): (usize, usize), depth: usize) {
    const FILLS: [&str; 3] = ["#f4f4f4", "#e8eef6", "#dcefdc"];
    svg.rect((x, y), size(nested), FILLS[depth.min(FILLS.len() - 1)]);
    svg.bold((x + 8, y + LINE), &nested.name);
    for (line, text) in nested.holds.iter().enumerate() {
        svg.text((x + 8, y + LINE * (line + 2)), text);
    }

    let mut child_x = x + MARGIN;
    for child in &nested.boxes {
        draw_box(svg, child, (child_x, y + text_height(nested)), depth + 1);
        let (child_width, _) = size(child);
        child_x += child_width + MARGIN;
    }
}

/// Wraps a text into lines of at most `maximum` bytes. A longer word gets a line of its own.
pub(crate) fn wrapped(text: &str, maximum: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= maximum => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
