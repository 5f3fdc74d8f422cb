//! Sizes as du(1) and ls(1) read and print them: units, and sizes for people.

/// Letters of units, by power.
const LETTERS: &[u8; 7] = b"\0KMGTPE";

/// Unit in which sizes are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cmd) enum SizeUnit {
    /// Blocks of so many bytes, rounded up.
    Blocks(u64),
    /// The same, with the name of the unit after it.
    Named { bytes: u64, letter: u8, base: u64, has_b: bool },
    /// The largest unit that leaves a number of at least 1, with one decimal below 10.
    Largest { base: u64 },
}

/// A size in the grammar of du(1): a number, a unit, or both.
pub(in crate::cmd) struct Scaled {
    pub(in crate::cmd) bytes: u64,
    has_number: bool,
    /// Letter of the unit, base of its powers, and whether it ends with a B.
    unit: Option<(u8, u64, bool)>,
}

impl Scaled {
    pub(in crate::cmd) fn parse(text: &str) -> Option<Scaled> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let (letter, rest) = match unit.as_bytes() {
            [letter, rest @ ..] => (letter.to_ascii_uppercase(), rest),
            [] if digits > 0 => {
                return Some(Scaled { bytes: number.parse().ok()?, has_number: true, unit: None });
            }
            [] => return None,
        };
        let power = LETTERS.iter().skip(1).position(|known| *known == letter)? + 1;
        let (base, has_b) = match rest {
            b"" => (1024, false),
            b"iB" => (1024, true),
            b"B" => (1000, true),
            _ => return None,
        };
        let number: u64 = if digits == 0 { 1 } else { number.parse().ok()? };
        let bytes = number.checked_mul(u64::checked_pow(base, power as u32)?)?;
        Some(Scaled { bytes, has_number: digits > 0, unit: Some((letter, base, has_b)) })
    }
}

impl SizeUnit {
    /// Parses the word after `-B`.
    pub(in crate::cmd) fn parse(text: &str) -> Result<SizeUnit, String> {
        match text {
            "human-readable" => return Ok(SizeUnit::Largest { base: 1024 }),
            "si" => return Ok(SizeUnit::Largest { base: 1000 }),
            _ => {}
        }
        let wrong = || format!("{text:?} is no size: say a number, K, M, G, KB, MiB, or both");
        let scaled = Scaled::parse(text).filter(|scaled| scaled.bytes > 0).ok_or_else(wrong)?;
        Ok(match scaled.unit {
            Some((letter, base, has_b)) if !scaled.has_number => {
                SizeUnit::Named { bytes: scaled.bytes, letter, base, has_b }
            }
            _ => SizeUnit::Blocks(scaled.bytes),
        })
    }

    /// Returns the unit that the environment says, as du(1) looks for it.
    pub(in crate::cmd) fn of_environment() -> SizeUnit {
        let said =
            ["DU_BLOCK_SIZE", "BLOCK_SIZE", "BLOCKSIZE"].into_iter().find_map(std::env::var_os);
        let plain = if std::env::var_os("POSIXLY_CORRECT").is_some() { 512 } else { 1024 };
        let said = said.map(|said| said.to_str().map(SizeUnit::parse));
        match said {
            Some(Some(Ok(unit))) => unit,
            _ => SizeUnit::Blocks(plain),
        }
    }

    /// Returns a number of bytes, or of inodes, in this unit. All are rounded up.
    pub(in crate::cmd) fn show(self, number: u64) -> String {
        match self {
            SizeUnit::Blocks(bytes) => number.div_ceil(bytes).to_string(),
            SizeUnit::Named { bytes, letter, base, has_b } => {
                format!("{}{}", number.div_ceil(bytes), name(letter, base, has_b))
            }
            SizeUnit::Largest { base } => largest(number, base),
        }
    }
}

fn name(letter: u8, base: u64, has_b: bool) -> String {
    // The kilo of 1000 is a small one.
    let small = base == 1000 && letter == b'K';
    let letter = char::from(if small { b'k' } else { letter });
    match (has_b, base) {
        (false, _) => letter.to_string(),
        (true, 1024) => format!("{letter}iB"),
        (true, _) => format!("{letter}B"),
    }
}

fn largest(number: u64, base: u64) -> String {
    let (number, base) = (u128::from(number), u128::from(base));
    let (mut power, mut unit) = (0, 1);
    while number / unit >= base && power + 1 < LETTERS.len() {
        (power, unit) = (power + 1, unit * base);
    }
    let mut text = number.div_ceil(unit).to_string();
    if power > 0 && number / unit < 10 {
        let tenths = (number * 10).div_ceil(unit);
        if tenths < 100 {
            text = format!("{}.{}", tenths / 10, tenths % 10);
        }
    } else if number.div_ceil(unit) == base && power + 1 < LETTERS.len() {
        power += 1;
        text = "1.0".into();
    }
    if power > 0 {
        text.push_str(&name(LETTERS[power], base as u64, false));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_du() {
        for (unit, number, expected) in [
            ("human-readable", 0, "0"),
            ("human-readable", 1023, "1023"),
            ("human-readable", 1024, "1.0K"),
            ("human-readable", 1025, "1.1K"),
            ("human-readable", 10_138, "10K"),
            ("human-readable", 10_240, "10K"),
            ("human-readable", 10_241, "11K"),
            ("human-readable", 1023 * 1024 + 1, "1.0M"),
            ("human-readable", 5 << 30, "5.0G"),
            ("human-readable", u64::MAX, "16E"),
            ("si", 999, "999"),
            ("si", 1000, "1.0k"),
            ("si", 999_001, "1.0M"),
            ("si", 9_950_001, "10M"),
            ("512", 513, "2"),
            ("K", 1025, "2K"),
            ("kB", 1001, "2kB"),
            ("MiB", 1, "1MiB"),
            ("1M", 1, "1"),
            ("MB", 2_000_000, "2MB"),
        ] {
            assert_eq!(SizeUnit::parse(unit).unwrap().show(number), expected, "{unit} {number}");
        }
        for wrong in ["", "0", "x", "1.5K", "K1", "KX", "B", "99999999999E"] {
            SizeUnit::parse(wrong).unwrap_err();
        }
    }
}
