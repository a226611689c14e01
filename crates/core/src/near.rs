//! What somebody may have meant.

/// The known word nearest to a mistyped one; absent where nothing is near enough to be meant.
pub fn nearest<'a>(mistyped: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let farthest = (mistyped.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|word| (strsim::osa_distance(mistyped, word), word))
        .filter(|(distance, _)| *distance <= farthest)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_is_a_slip_of_the_fingers() {
        let known = ["memory", "max_memory", "pids", "tmp"];
        for (mistyped, meant) in [
            ("memroy", Some("memory")),
            ("max-memory", Some("max_memory")),
            ("pid", Some("pids")),
            ("temp", Some("tmp")),
            ("processes", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(mistyped, known), meant, "{mistyped}");
        }
    }
}
