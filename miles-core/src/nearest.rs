//! The known name that a mistyped one probably meant.

/// The entry of `known` closest to `name`, if one is close enough to be worth suggesting.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |candidate: &str| strsim::jaro_winkler(&name.to_lowercase(), &candidate.to_lowercase());
    known
        .into_iter()
        .map(|candidate| (similarity(candidate), candidate))
        .filter(|(score, _)| *score >= 0.75)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_the_closest_and_nothing_when_all_are_far() {
        let known = ["nvfp4-dequantized", "mxfp8", "bf16"];
        assert_eq!(nearest("nvfp4-dequantised", known), Some("nvfp4-dequantized"));
        assert_eq!(nearest("MXFP-8", known), Some("mxfp8"));
        assert_eq!(nearest("zzz", known), None);
    }
}
