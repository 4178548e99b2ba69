//! The precision map for people: one row per role and decision.

use std::collections::BTreeMap;
use std::fmt;

use super::{PartitionPlan, PrecisionEntry, PrecisionMap, TensorFormat};
use crate::format::{QuantizeSpec, ScaleKind, builtin_rule};
use crate::network::{Inventory, Parameter};

/// A precision map, grouped by role and decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrecisionTable {
    /// Recipe of the map.
    pub recipe: String,
    /// How routed experts are cut.
    pub plan: PartitionPlan,
    /// Digest of the map.
    pub digest: String,
    /// Rows in the order in which their first tensor appears in the inventory.
    pub rows: Vec<TableRow>,
}

/// Tensors of one role that share a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRow {
    /// Role.
    pub role: &'static str,
    /// Layers as ranges (`0-39`); empty for tensors outside the layers.
    pub layers: String,
    /// Format.
    pub format: String,
    /// Backward mode.
    pub backward: &'static str,
    /// The rule that decided.
    pub rule: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of elements.
    pub elements: usize,
    /// Bytes if every element were BF16.
    pub bf16_bytes: usize,
    /// Bytes in this format, scales included; `None` for a format whose layout is not built in.
    pub bytes: Option<usize>,
}

impl PrecisionTable {
    /// Groups a map over its inventory.
    #[must_use]
    pub fn new(inventory: &Inventory, map: &PrecisionMap) -> Self {
        let mut groups: BTreeMap<(&str, String, &str, &str), Group> = BTreeMap::new();
        for (index, (parameter, entry)) in inventory.parameters.iter().zip(map.entries()).enumerate() {
            let key = (parameter.role.name(), entry.format.to_string(), entry.backward.name(), entry.rule.as_str());
            let group = groups.entry(key).or_insert_with(|| Group::starting_at(index));
            group.layers.extend(parameter.layer);
            group.tensors += 1;
            group.elements += parameter.elements();
            group.bytes = group.bytes.zip(stored_bytes(parameter, entry)).map(|(sum, bytes)| sum + bytes);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, group)| group.first);
        let rows = groups
            .into_iter()
            .map(|((role, format, backward, rule), group)| TableRow {
                role,
                layers: ranges(group.layers),
                format,
                backward,
                rule: rule.to_owned(),
                tensors: group.tensors,
                elements: group.elements,
                bf16_bytes: 2 * group.elements,
                bytes: group.bytes,
            })
            .collect();
        PrecisionTable { recipe: map.recipe().to_owned(), plan: map.plan(), digest: map.digest().to_string(), rows }
    }

    /// Bytes if every element were BF16.
    #[must_use]
    pub fn bf16_bytes(&self) -> usize {
        self.rows.iter().map(|row| row.bf16_bytes).sum()
    }

    /// Bytes of all tensors; `None` when a format's layout is not built in.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        self.rows.iter().map(|row| row.bytes).sum()
    }
}

impl fmt::Display for PrecisionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: Option<usize>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
        let mut lines =
            vec![["role", "layers", "format", "backward", "tensors", "bf16 bytes", "bytes"].map(str::to_owned)];
        for row in &self.rows {
            lines.push([
                row.role.to_owned(),
                row.layers.clone(),
                row.format.clone(),
                row.backward.to_owned(),
                row.tensors.to_string(),
                row.bf16_bytes.to_string(),
                bytes(row.bytes),
            ]);
        }
        let tensors: usize = self.rows.iter().map(|row| row.tensors).sum();
        lines.push([
            "total".to_owned(),
            String::new(),
            String::new(),
            String::new(),
            tensors.to_string(),
            self.bf16_bytes().to_string(),
            bytes(self.bytes()),
        ]);
        let mut widths = [0; 7];
        for line in &lines {
            widths.iter_mut().zip(line).for_each(|(width, cell)| *width = (*width).max(cell.len()));
        }
        writeln!(f, "precision map of `{}`, digest {}", self.recipe, self.digest)?;
        if !self.plan.is_whole() {
            writeln!(f, "routed experts are cut: {}", self.plan)?;
        }
        for [role, layers, format, backward, tensors, before, after] in &lines {
            let line = format!(
                "{role:<0$}  {layers:<1$}  {format:<2$}  {backward:<3$}  {tensors:>4$}  {before:>5$}  {after:>6$}",
                widths[0], widths[1], widths[2], widths[3], widths[4], widths[5], widths[6]
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

struct Group {
    first: usize,
    layers: Vec<usize>,
    tensors: usize,
    elements: usize,
    bytes: Option<usize>,
}

impl Group {
    fn starting_at(first: usize) -> Self {
        Group { first, layers: Vec::new(), tensors: 0, elements: 0, bytes: Some(0) }
    }
}

/// Bytes of one tensor, scales included; `None` for a format whose layout is not built in.
pub(super) fn stored_bytes(parameter: &Parameter, entry: &PrecisionEntry) -> Option<usize> {
    match &entry.format {
        TensorFormat::Dense(dtype) => Some(parameter.elements() * dtype.element_bytes()),
        TensorFormat::Quantized(id) => {
            let (rows, cols) = parameter.rows_cols();
            let spec = QuantizeSpec::weight(id.clone()).with_partition(entry.partition);
            let layout = builtin_rule(id)?.layout(rows, cols, &spec).ok()?;
            let scale_bytes = if layout.scale_kind == ScaleKind::F32 { 4 } else { 1 };
            Some(layout.codes_bytes + layout.scale_rows * layout.scale_cols * scale_bytes + 4 * layout.outer_len)
        }
    }
}

/// `[0, 1, 2, 5]` as `0-2, 5`; duplicates count once.
fn ranges(mut layers: Vec<usize>) -> String {
    layers.sort_unstable();
    layers.dedup();
    let runs = layers.chunk_by(|a, b| a + 1 == *b).map(|run| match (run[0], run[run.len() - 1]) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    runs.collect::<Vec<_>>().join(", ")
}
