//! The hand-off from F32 master weights to published bytes: what is quantized is the BF16 rounding of the master.

use std::sync::Arc;

use super::Subject;
use crate::conformance::compare::{same, same_tensor};
use crate::conformance::grid::Grid;
use crate::conformance::trainer::bench::is_of_network;
use crate::conformance::{Failure, Report, Suite, Verdict};
use crate::format::{FormatId, FormatRule, QuantizeSpec, QuantizedTensor, Source, SourceDtype, builtin_rules};
use crate::model::{Architecture, AttentionConfig, MlpConfig, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use crate::network::{Network, ParamId, Role};
use crate::plugin::{Quantizer, Support};
use crate::policy::{Ledger, PolicyContext, PolicyTensor, PolicyVersion, Snapshot, WeightSource, quantize_policy};
use crate::precision::{PartitionPlan, PrecisionMap, Recipe, Rule, TensorFormat, resolve_with};
use crate::{Error, Result};

/// Something that turns master weights into a policy version, as [`quantize_policy`] does.
pub type Publisher<'p> = dyn Fn(&Arc<Network>, &Arc<PrecisionMap>, &dyn Quantizer, &dyn WeightSource, PolicyContext<'_>) -> Result<Snapshot>
    + 'p;

/// Tests a publisher: every built-in format has one case, `publication/FORMAT`.
///
/// The master weights have more precision than BF16; the bytes have to be those of their BF16 rounding.
///
/// ```
/// use miles_core::{conformance, policy::quantize_policy};
///
/// conformance::publication(&quantize_policy).require()?;
/// # Ok::<(), conformance::ConformanceError>(())
/// ```
#[must_use]
pub fn publication(publisher: &Publisher<'_>) -> Report {
    let mut suite = Suite::new("publisher");
    for rule in builtin_rules() {
        suite.case(format!("publication/{}", rule.id()), || check(publisher, &ByRule(rule), rule));
    }
    suite.finish()
}

/// The quantizer under test, called by [`quantize_policy`].
pub(super) fn through_quantizer(subject: &Subject<'_>) -> Verdict {
    check(&quantize_policy, subject.quantizer, subject.rule)
}

fn check(publisher: &Publisher<'_>, quantizer: &dyn Quantizer, rule: &dyn FormatRule) -> Verdict {
    let network = Arc::new(network());
    let roles = [Role::AttentionO, Role::MlpGate, Role::MlpUp, Role::MlpDown];
    let overrides = [Rule::roles(&roles, TensorFormat::Quantized(rule.id()))];
    let map = Arc::new(resolve_with(&network, Recipe::Bf16, &overrides, &[rule], PartitionPlan::WHOLE)?);
    let masters = Masters { network: &network };
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "conformance", step: 0, version: PolicyVersion(3), ledger: &ledger };
    let snapshot = publisher(&network, &map, quantizer, &masters, context)?;
    is_of_network(&snapshot, &network)?;
    same("version", snapshot.stamp().version, PolicyVersion(3))?;
    let mut compared = 0;
    for id in network.ids() {
        let parameter = network.parameter(id);
        let PolicyTensor::Quantized(found) = snapshot.tensor(id).as_ref() else {
            let dense = matches!(map.entry(id).format, TensorFormat::Dense(_));
            Failure::unless(dense, || format!("{} is published in high precision", parameter.name))?;
            continue;
        };
        // In the order of the network, gate before up: a rule may draw random bits by the row of the stacked pair.
        let mut members: Vec<ParamId> = std::iter::once(id).chain(parameter.pair).collect();
        members.sort_unstable_by_key(|member| member.index());
        same_tensor(found, &of_rounding(rule, &network, &members, id)?)
            .map_err(|failure| failure.at(&parameter.name))?;
        compared += 1;
    }
    same("quantized tensors", compared, roles.len())
}

/// What `wanted` becomes when the BF16 roundings of all `members` are quantized together.
fn of_rounding(
    rule: &dyn FormatRule,
    network: &Network,
    members: &[ParamId],
    wanted: ParamId,
) -> Result<QuantizedTensor, Failure> {
    let rounded: Vec<Grid> = members.iter().map(|&id| master(network, id).to_bf16()).collect();
    let sources: Vec<Source<'_>> =
        rounded.iter().map(|grid| grid.source(SourceDtype::Bf16)).collect::<Result<_, _>>()?;
    let tensors = rule.quantize_joint(&sources, &QuantizeSpec::weight(rule.id()))?;
    same("tensors of the rule", tensors.len(), members.len())?;
    let of_wanted = members.iter().zip(tensors).find(|(member, _)| **member == wanted);
    of_wanted.map(|(_, tensor)| tensor).ok_or_else(|| Failure::new("the parameter is no member of its own pair"))
}

/// One parameter's master values, none of which is a BF16 value.
fn master(network: &Network, id: ParamId) -> Grid {
    let (rows, cols) = network.parameter(id).rows_cols();
    let mut grid = Grid::uniform(rows, cols, u64::from(id.0));
    grid.values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits() | 1));
    grid
}

struct Masters<'a> {
    network: &'a Network,
}

impl WeightSource for Masters<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()> {
        *into = master(self.network, id).values;
        Ok(())
    }
}

/// One dense layer whose matrices are wider and higher than a 128x128 tile.
fn network() -> Network {
    let rope = RopeConfig { theta: 1e4, rotary_dim: 16, pairing: RopePairing::Halves, scaling: RopeScaling::Default };
    Network::new(&ModelConfig {
        architecture: Architecture::Llama,
        vocab_size: 8,
        hidden_size: 160,
        context_tokens: 16,
        rms_norm_eps: 1e-6,
        rope,
        tie_word_embeddings: true,
        attention: AttentionConfig::Grouped {
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            qkv_bias: false,
            output_bias: false,
            qk_norm: false,
        },
        mlps: vec![MlpConfig::Dense { intermediate_size: 224, bias: false }],
        eos_token_ids: Vec::new(),
        bos_token_id: None,
    })
}

/// A rule as a quantizer of its one format.
struct ByRule<'a>(&'a dyn FormatRule);

impl Quantizer for ByRule<'_> {
    fn id(&self) -> &str {
        "scalar rule"
    }

    fn support(&self, format: &FormatId) -> Support {
        if *format == self.0.id() { Support::Native } else { Support::Unsupported }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        match self.support(&spec.format) {
            Support::Unsupported => Err(Error::Unsupported {
                operation: format!("quantize to `{}`", spec.format),
                backend: self.id().to_owned(),
                why: format!("it has the rule of `{}` alone", self.0.id()),
            }),
            _ => Ok(self.0.quantize_joint(sources, spec)?),
        }
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        Ok(self.0.dequantize(tensor)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Outcome, broken};

    #[test]
    fn the_library_publishes_bf16_roundings_and_a_publisher_of_masters_is_caught() {
        let report = publication(&quantize_policy);
        assert!(report.require().is_ok(), "{report}");
        let report = publication(&broken::publish_masters);
        assert!(matches!(report.outcome(broken::PUBLISH_MASTERS_CAUGHT_BY), Some(Outcome::Failed { .. })), "{report}");
    }
}
