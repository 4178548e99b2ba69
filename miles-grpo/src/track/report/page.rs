//! The page around the charts.

use std::fmt::Write;

use super::Report;
use super::charts::{Chart, hex};
use super::series::{Series, below, stacked};
use crate::output::OutputError;
use crate::stages::Stage;

/// The whole page.
pub(super) fn html(report: &Report<'_>) -> Result<String, OutputError> {
    let mut page = String::new();
    let title = escape(report.run);
    // Writing into a string cannot fail; the results are dropped for that reason.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    page.push_str(&summary(report));
    page.push_str("<section class=\"charts\">\n");
    for chart in charts(report).iter().filter(|chart| !chart.is_empty()) {
        page.push_str(&figure(chart)?);
    }
    page.push_str("</section>\n");
    page.push_str(&precision(report));
    let _ = write!(page, "<h2>Config</h2>\n<pre>{}</pre>\n", escape(report.config));
    page.push_str("</main>\n</body>\n</html>\n");
    Ok(page)
}

fn summary(report: &Report<'_>) -> String {
    let summary = report.summary;
    let held_out = match (summary.held_out_first, summary.held_out_last) {
        (Some(first), Some(last)) => format!("{first:.3} → {last:.3}"),
        _ => "not measured".to_owned(),
    };
    let figures = [
        ("Steps", report.records.len().to_string()),
        ("Reward (first 5 → last 5 steps)", format!("{:.3} → {:.3}", summary.reward_first, summary.reward_last)),
        ("Held-out accuracy", held_out),
        ("Largest mismatch", summary.mismatch_max.to_string()),
        ("Policy versions", summary.versions.to_string()),
        ("Backend", report.backend.to_owned()),
    ];
    let mut html = String::from("<dl class=\"figures\">\n");
    for (name, value) in figures {
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    let _ = write!(html, "</dl>\n<p class=\"digest\">Policy digest <code>{}</code></p>\n", summary.policy.digest);
    if !report.notes.is_empty() {
        html.push_str("<ul class=\"notes\">\n");
        for note in report.notes {
            let _ = writeln!(html, "<li>{}</li>", escape(note));
        }
        html.push_str("</ul>\n");
    }
    html
}

fn charts(report: &Report<'_>) -> Vec<Chart> {
    let records = report.records;
    let of = |key: &str, name: &str| Series::of(records, key, name);
    let reward = of("rollout/reward_mean", "mean reward");
    let deviation = of("rollout/reward_std", "deviation");
    let shifted = |sign: f64| Series {
        name: String::new(),
        points: reward
            .points
            .iter()
            .zip(&deviation.points)
            .map(|(&(x, mean), &(_, std))| (x, mean + sign * std))
            .collect(),
    };
    let band = Some((shifted(-1.0), shifted(1.0)));
    let before = records.first().and_then(|record| Some((record.step as f64, record.number("eval/accuracy_before")?)));
    let accuracy = of("eval/accuracy", "held-out accuracy").preceded_by(before);
    let stages = Stage::ALL.map(|(_, name)| of(&format!("perf/seconds_{name}"), name)).to_vec();
    let lost = vec![
        of("quantize/saturated", "saturated elements"),
        of("quantize/underflowed_blocks", "underflowed blocks"),
        of("quantize/non_finite", "non-finite elements"),
    ];
    let mismatch = vec![of("train/mismatch_max_abs", "largest difference"), of("train/mismatch_k3", "k3")];
    vec![
        Chart { band, ..Chart::lines("Reward, mean and spread", vec![reward]) },
        Chart { shown: (0.0, 0.0), ..Chart::lines("Held-out accuracy", vec![accuracy]) },
        Chart::lines("Mismatch of rollout and trainer logprobs", mismatch),
        Chart::lines("Divergence from the reference policy (k3)", vec![of("train/kl_ref", "k3")]),
        Chart::lines("Gradient norm", vec![of("train/grad_norm", "total")]),
        Chart::lines("Gradient norm per part", below(records, "train/grad_norm/")),
        Chart::lines("Activations that quantization could not keep", lost),
        Chart::lines("Response length (tokens)", vec![of("rollout/response_tokens_mean", "mean")]),
        Chart::lines("Entropy (nats per token)", vec![of("train/entropy", "entropy")]),
        Chart { is_stacked: true, ..Chart::lines("Seconds per stage", stacked(stages)) },
        Chart {
            shown: (0.0, 0.0),
            ..Chart::lines("Peak memory (MiB)", vec![of("perf/peak_rss_bytes", "resident").scaled(1.0 / 1_048_576.0)])
        },
    ]
}

fn figure(chart: &Chart) -> Result<String, OutputError> {
    let mut html = format!("<figure>\n<figcaption>{}</figcaption>\n{}\n", escape(chart.title), chart.svg()?);
    if chart.lines.len() > 1 {
        html.push_str("<p class=\"legend\">");
        for (index, line) in chart.lines.iter().enumerate() {
            let _ = write!(html, "<span><i style=\"background:{}\"></i>{}</span> ", hex(index), escape(&line.name));
        }
        html.push_str("</p>\n");
    }
    html.push_str("</figure>\n");
    Ok(html)
}

fn precision(report: &Report<'_>) -> String {
    let table = report.precision;
    let mut html = format!(
        "<h2>Precision map</h2>\n<p>Recipe <code>{}</code>, digest <code>{}</code>, {}</p>\n<div class=\"scroll\"><table>\n\
         <thead><tr><th>role</th><th>layers</th><th>format</th><th>gradients</th><th>rule</th>\
         <th>tensors</th><th>elements</th><th>bytes</th></tr></thead>\n<tbody>\n",
        escape(&table.recipe),
        escape(&table.digest),
        table.plan
    );
    for row in &table.rows {
        let bytes = row.bytes.map_or_else(|| "–".to_owned(), |bytes| bytes.to_string());
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{bytes}</td></tr>",
            escape(row.role),
            escape(&row.layers),
            escape(&row.format),
            escape(row.backward),
            escape(&row.rule),
            row.tensors,
            row.elements
        );
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "
body { margin: 0; background: #f6f7f9; color: #1f2429; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1360px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 16px; }
h2 { font-size: 19px; margin: 32px 0 8px; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { background: #fff; border: 1px solid #e2e5e9; border-radius: 8px; padding: 12px; overflow-x: auto; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; margin: 0; }
.figures div { background: #fff; border: 1px solid #e2e5e9; border-radius: 8px; padding: 12px 14px; }
.figures dt { color: #5b636d; font-size: 13px; }
.figures dd { margin: 2px 0 0; font-size: 18px; font-weight: 600; }
.digest { color: #5b636d; overflow-wrap: anywhere; }
.notes { background: #fff8e6; border: 1px solid #f0dfb0; border-radius: 8px; padding: 10px 14px 10px 32px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; margin-top: 20px; }
figure { margin: 0; background: #fff; border: 1px solid #e2e5e9; border-radius: 8px; padding: 12px; }
figcaption { font-weight: 600; padding: 0 4px 4px; }
figure svg { width: 100%; height: auto; }
.legend { margin: 4px; font-size: 13px; color: #464c54; }
.legend span { margin-right: 12px; white-space: nowrap; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; background: #fff; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 6px 10px; border: 1px solid #e2e5e9; }
th { background: #eef0f3; }
";
