//! Sizes, as people say them.

/// A number of bytes: K, M, G and T are powers of 1024, and so are KB and KiB.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size: say a number, or one with K, M, G or T");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let shift = match unit.as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn one_grammar() {
        for text in ["1M", "1m", "1MB", "1MiB", "1024K", "1048576", "1048576B"] {
            assert_eq!(parse(text), Ok(1 << 20), "{text}");
        }
        assert_eq!(parse("2G"), Ok(2 << 30));
        for text in ["", "M", "1X", "-1", "1.5M", "1 M", "99999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
