//! Line charts as inline SVG.

use plotters::prelude::*;
use plotters::style::Color;

use super::series::Series;
use crate::output::OutputError;

/// One chart over steps.
#[derive(Debug)]
pub(super) struct Chart {
    /// What is plotted, with its unit.
    pub title: &'static str,
    /// Lines, drawn in order.
    pub lines: Vec<Series>,
    /// An area between two lines of equal steps (lower, upper), drawn first.
    pub band: Option<(Series, Series)>,
    /// Whether the lines are sums drawn as areas on top of each other.
    pub is_stacked: bool,
    /// Values that the axis always shows.
    pub shown: (f64, f64),
}

impl Chart {
    pub(super) fn lines(title: &'static str, lines: Vec<Series>) -> Self {
        Chart { title, lines, band: None, is_stacked: false, shown: (f64::INFINITY, f64::NEG_INFINITY) }
    }

    /// Whether there is anything to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// The chart as an SVG element.
    pub(super) fn svg(&self) -> Result<String, OutputError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| OutputError::Plot { plot: self.title, why: error.to_string() })?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let ((first, last), (low, high)) = self.extent();
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .margin_right(20)
            .x_label_area_size(28)
            .y_label_area_size(62)
            .build_cartesian_2d(first..last, low..high)?;
        chart
            .configure_mesh()
            .x_labels(8)
            .y_labels(6)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(AXIS)
            .label_style(("sans-serif", 12, &INK))
            .x_label_formatter(&|step| format!("{step:.0}"))
            .y_label_formatter(&|value| number(if value.abs() < ROUNDING * (high - low) { 0.0 } else { *value }))
            .draw()?;
        if let Some((lower, upper)) = &self.band {
            let outline: Vec<(f64, f64)> = lower.points.iter().chain(upper.points.iter().rev()).copied().collect();
            chart.draw_series(std::iter::once(Polygon::new(outline, color(0).mix(0.18).filled())))?;
        }
        // Sums are drawn from the highest down, so that each leaves its own stripe visible.
        let order: Vec<usize> = match self.is_stacked {
            true => (0..self.lines.len()).rev().collect(),
            false => (0..self.lines.len()).collect(),
        };
        for index in order {
            let points = self.lines[index].points.iter().copied();
            let style = color(index).stroke_width(2);
            if self.is_stacked {
                let area = AreaSeries::new(points.clone(), 0.0, color(index).mix(0.9));
                chart.draw_series(area)?;
            } else {
                chart.draw_series(LineSeries::new(points.clone(), style))?;
            }
            if self.lines[index].points.len() <= MARKED_POINTS && !self.is_stacked {
                chart.draw_series(points.map(|point| Circle::new(point, 3, color(index).filled())))?;
            }
        }
        drop(chart);
        root.present()?;
        Ok(())
    }

    /// Ranges of steps and values, never empty.
    fn extent(&self) -> ((f64, f64), (f64, f64)) {
        let of_band = self.band.iter().flat_map(|(lower, upper)| [lower, upper]);
        let points = || self.lines.iter().chain(of_band.clone()).flat_map(|line| &line.points);
        let grow = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
        let steps = points().map(|point| point.0).fold((f64::INFINITY, f64::NEG_INFINITY), grow);
        let start = if self.is_stacked { grow(self.shown, 0.0) } else { self.shown };
        let values = points().map(|point| point.1).fold(start, grow);
        (widened(steps, 0.5), widened(values, 0.05 * (values.1 - values.0)))
    }
}

fn widened((low, high): (f64, f64), margin: f64) -> (f64, f64) {
    match (low.is_finite() && high.is_finite(), low < high) {
        (false, _) => (0.0, 1.0),
        (true, false) if low == 0.0 => (0.0, 1.0),
        (true, false) => (low - 0.5 * low.abs(), high + 0.5 * high.abs()),
        (true, true) => (low - margin.min(low.abs()), high + margin),
    }
}

/// Short text of an axis value.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        return format!("{value:.1e}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Colour of a line as a hexadecimal triple, for the legend beside the chart.
pub(super) fn hex(index: usize) -> String {
    let RGBColor(red, green, blue) = color(index);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn color(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// Told apart with the common forms of colour blindness (Okabe and Ito), darkened for lines on white.
const PALETTE: [RGBColor; 8] = [
    RGBColor(0, 90, 156),
    RGBColor(213, 94, 0),
    RGBColor(0, 128, 96),
    RGBColor(177, 82, 140),
    RGBColor(190, 133, 0),
    RGBColor(58, 150, 201),
    RGBColor(110, 110, 110),
    RGBColor(20, 20, 20),
];
const INK: RGBColor = RGBColor(70, 76, 84);
const AXIS: RGBColor = RGBColor(170, 176, 184);
const GRID: RGBColor = RGBColor(232, 235, 239);
const SIZE: (u32, u32) = (640, 280);
const MARKED_POINTS: usize = 12;
/// Axis values below this share of the axis are zeros that lost a few bits.
const ROUNDING: f64 = 1e-9;
