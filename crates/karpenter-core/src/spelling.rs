//! What a misspelt name or value was meant to be.

use karpenter_api::labels;

/// Letters in which a misspelt word differs from the one that was meant, at most.
const MAX_DISTANCE: usize = 2;

/// The values of labels that have few, which do not depend on a cluster.
const VALUES: [(&str, &[&str]); 3] = [
    (labels::ARCH, &[labels::ARCH_AMD64, labels::ARCH_ARM64]),
    (labels::OS, &["linux", "windows"]),
    (
        labels::CAPACITY_TYPE,
        &[
            labels::CAPACITY_TYPE_SPOT,
            labels::CAPACITY_TYPE_ON_DEMAND,
            labels::CAPACITY_TYPE_RESERVED,
        ],
    ),
];

/// Returns the known word that differs from `word` by least, if one differs in two letters at most.
///
/// ```
/// use karpenter_core::spelling::nearest;
///
/// assert_eq!(nearest("defualt", ["default", "gpu"]), Some("default"));
/// assert_eq!(nearest("infrastructure", ["default", "gpu"]), None);
/// ```
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &'a str| {
        let distance = strsim::osa_distance(known, word);
        // A word of two letters is similar to all others of two letters.
        (distance <= MAX_DISTANCE && distance < word.len()).then_some((distance, known))
    };
    let (_, nearest) = known.into_iter().filter_map(near).min()?;
    Some(nearest)
}

/// Returns what a value of a label was meant to be, for labels whose values are the same in all clusters: `amd64` for the
/// architecture `amd46`.
pub fn meant_value(key: &str, value: &str) -> Option<&'static str> {
    let (_, values) = VALUES.iter().find(|(label, _)| *label == key)?;
    let is_new = !values.contains(&value);
    is_new.then(|| nearest(value, values.iter().copied()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_with_few_values_are_corrected() {
        for (key, value, meant) in [
            (labels::ARCH, "amd46", Some("amd64")),
            (labels::ARCH, "amd64", None),
            (labels::ARCH, "s390x", None),
            (labels::OS, "lunix", Some("linux")),
            (labels::CAPACITY_TYPE, "on-demnad", Some("on-demand")),
            (labels::ZONE, "us-west-2d", None),
        ] {
            assert_eq!(meant_value(key, value), meant, "{value}");
        }
    }
}
