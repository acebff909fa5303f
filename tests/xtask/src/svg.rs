//! Drawing of boxes, lines and text as SVG.

use std::fmt::Write as _;

/// Colour of text and outlines.
const INK: &str = "#334455";
/// Height of a line of text.
pub(crate) const LINE: usize = 15;

/// A picture in progress. Coordinates are in pixels, from the upper left corner.
pub(crate) struct Svg {
    body: String,
}

impl Svg {
    /// Begins an empty picture.
    pub(crate) fn new() -> Self {
        Self { body: String::new() }
    }

    /// Draws a box.
    pub(crate) fn rect(&mut self, (x, y): (usize, usize), (width, height): (usize, usize), fill: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"3\" fill=\"{fill}\" \
             stroke=\"{INK}\"/>"
        );
    }

    /// Draws a line of text whose base line starts at the position.
    pub(crate) fn text(&mut self, (x, y): (usize, usize), text: &str) {
        self.styled(x, y, "", text);
    }

    /// Draws a line of bold text, as [`Svg::text`] does.
    pub(crate) fn bold(&mut self, (x, y): (usize, usize), text: &str) {
        self.styled(x, y, " font-weight=\"bold\"", text);
    }

    /// Draws a line of text whose middle is at the position.
    pub(crate) fn centred(&mut self, (x, y): (usize, usize), text: &str) {
        self.styled(x, y, " text-anchor=\"middle\"", text);
    }

    /// Draws a line of text with more attributes of the element.
    fn styled(&mut self, x: usize, y: usize, style: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(self.body, "<text x=\"{x}\" y=\"{y}\" fill=\"{INK}\"{style}>{text}</text>");
    }

    /// Draws a line with more attributes of the element.
    pub(crate) fn line(&mut self, from: (usize, usize), to: (usize, usize), style: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{INK}\" {style}/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// Draws a line with a head at its end.
    pub(crate) fn arrow(&mut self, from: (usize, usize), to: (usize, usize)) {
        self.line(from, to, "marker-end=\"url(#head)\"");
    }

    /// Returns the picture of this size.
    pub(crate) fn finish(self, title: &str, (width, height): (usize, usize)) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<title>{title}</title>\n\
             <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" \
             markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"{INK}\"/></marker></defs>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}
