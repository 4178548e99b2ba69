//! Figures of a run as lines over steps.

use miles_core::plugin::StepRecord;

/// A named line; steps without the figure have no point.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// One metric over the run.
    pub(super) fn of(records: &[StepRecord], key: &str, name: &str) -> Self {
        let points =
            records.iter().filter_map(|record| Some((record.step as f64 + 1.0, record.number(key)?))).collect();
        Series { name: name.to_owned(), points }
    }

    /// The same with every value multiplied.
    pub(super) fn scaled(mut self, factor: f64) -> Self {
        self.points.iter_mut().for_each(|(_, value)| *value *= factor);
        self
    }

    /// The same with a point put before the others.
    pub(super) fn preceded_by(mut self, point: Option<(f64, f64)>) -> Self {
        self.points.splice(0..0, point);
        self
    }
}

/// Every metric below a prefix, in the order in which the first record that has any lists them.
pub(super) fn below(records: &[StepRecord], prefix: &str) -> Vec<Series> {
    let names = |record: &StepRecord| -> Vec<String> {
        record.values.keys().filter_map(|key| key.strip_prefix(prefix).map(str::to_owned)).collect()
    };
    let names = records.iter().map(names).find(|names| !names.is_empty()).unwrap_or_default();
    names.into_iter().map(|name| Series::of(records, &format!("{prefix}{name}"), &name)).collect()
}

/// Each line becomes the sum of itself and the lines before it. All lines must have the same steps.
pub(super) fn stacked(lines: Vec<Series>) -> Vec<Series> {
    let mut sums: Vec<f64> = Vec::new();
    lines
        .into_iter()
        .map(|mut line| {
            sums.resize(line.points.len(), 0.0);
            for ((_, value), sum) in line.points.iter_mut().zip(&mut sums) {
                *sum += *value;
                *value = *sum;
            }
            line
        })
        .collect()
}
