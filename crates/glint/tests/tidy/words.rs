//! Rules of names, words and comments.

use crate::files;
use std::collections::BTreeMap;

/// Names that say nothing of a type: whose state, what runs, shared by whom. A node is a host.
const EMPTY_NAMES: [&str; 5] = ["State", "Running", "Shared", "Node", "Core"];

/// Words that were used for a thing beside the one that docs/glossary.md has for it, and that one.
/// Each is found however it is written: `call_back`, "call back", `CallBack`, `callbacks`.
const SECOND_WORDS: [(&str, &str); 20] = [
    ("callback", "recall"),
    ("takeback", "recall"),
    ("takenback", "recalled"),
    ("askedback", "recalled"),
    ("advisory", "POSIX lock"),
    ("proof", "capability"),
    ("mailbox", "recall queue"),
    ("keeperoflocks", "lock client"),
    ("unborn", "never created"),
    ("disown", "return the delegation"),
    ("giveupbits", "return bits"),
    ("givelocksup", "return locks"),
    ("giveuplocks", "return locks"),
    ("giveupclients", "evict"),
    ("givesupclients", "evicts"),
    ("givingupclients", "evict"),
    ("theevidence", "the name of the source"),
    ("leaseinode", "inode grant"),
    ("inodelease", "inode grant"),
    ("clientterm", "client parameters"),
];

/// Words that say nothing at the beginning of a comment: what they stand for is elsewhere.
const PRONOUNS: [&str; 13] = [
    "It", "Its", "They", "Their", "Them", "Those", "These", "This", "That", "What", "Who",
    "Whoever", "Whose",
];

/// The type that a line defines.
fn type_defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    if word.starts_with("pub") {
        word = words.next()?;
    }
    let is_type = ["struct", "enum", "trait", "type"].contains(&word);
    let name = words.next()?.split(|c: char| !c.is_alphanumeric()).next()?;
    is_type.then_some(name)
}

#[test]
fn names_of_types_say_what_they_are() {
    for (path, text) in files("rs") {
        let mut defined = text.lines().filter_map(type_defined);
        let empty = defined.find(|name| EMPTY_NAMES.contains(name));
        assert_eq!(empty, None, "{path}");
    }
}

/// Compared are types that other crates may see, in the whole workspace, and, of each crate, types
/// that are seen outside their module with all of that crate: whoever reads a name looks it up
/// there. Two crates may have a type of one name each for what is the same on both sides, such as
/// `Sessions`; two private ones stand beside what they are about. Only the arguments of a command
/// are called `Args` in each, after clap.
#[test]
fn a_name_of_a_type_that_others_see_is_its_own() {
    let mut public = BTreeMap::<String, Vec<String>>::new();
    let mut of_crates = BTreeMap::<(String, String), (bool, Vec<String>)>::new();
    for (path, text) in files("rs").into_iter().filter(|(path, _)| path.contains("/src/")) {
        let the_crate = path.split_inclusive('/').take(2).collect::<String>();
        for line in text.lines() {
            let Some(name) = type_defined(line).filter(|name| *name != "Args") else { continue };
            if line.starts_with("pub ") {
                public.entry(name.to_owned()).or_default().push(path.clone());
            }
            if !line.starts_with(' ') {
                let (is_seen, paths) =
                    of_crates.entry((the_crate.clone(), name.to_owned())).or_default();
                *is_seen |= line.starts_with("pub");
                paths.push(path.clone());
            }
        }
    }
    for (name, paths) in public {
        assert!(paths.len() == 1, "{name}: {paths:?}");
    }
    for ((_, name), (is_seen, paths)) in of_crates {
        assert!(!is_seen || paths.len() == 1, "{name}: {paths:?}");
    }
}

/// Words of a line in lower case, in runs between which there is more than a space or an
/// underscore: `CallBack`, `call_back` and "call back" are two words of one run.
fn runs_of_words(line: &str) -> Vec<Vec<String>> {
    let mut runs = vec![vec![String::new()]];
    let mut before = ' ';
    for c in line.chars() {
        let run = runs.last_mut().unwrap();
        let begins = c.is_uppercase() && before.is_lowercase();
        if c == ' ' || c == '_' || begins {
            run.push(String::new());
        }
        if c.is_alphanumeric() {
            run.last_mut().unwrap().extend(c.to_lowercase());
        } else if c != ' ' && c != '_' {
            runs.push(vec![String::new()]);
        }
        before = c;
    }
    runs
}

/// Whether words of a run, one behind the other, are this one, or more than one of it.
fn has_word(run: &[String], word: &str) -> bool {
    (0..run.len()).any(|from| {
        let mut rest = word;
        for next in &run[from..] {
            if next == rest || next.strip_suffix('s') == Some(rest) {
                return !rest.is_empty();
            }
            match rest.strip_prefix(next.as_str()) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        false
    })
}

#[test]
fn words_are_found_however_they_are_written() {
    let has = |line: &str| runs_of_words(line).iter().any(|run| has_word(run, "callback"));
    for line in ["callback", "the Callbacks of", "self.call_back(", "CallBack", "to call back,"] {
        assert!(has(line), "{line}");
    }
    for line in ["a call. Back", "recall back", "call, back", "callbacked", "call", ""] {
        assert!(!has(line), "{line}");
    }
}

/// Each thing has one word.
#[test]
fn nothing_has_a_second_word() {
    for (path, text) in files("rs").into_iter().chain(files("md")) {
        if path.ends_with("tests/tidy/words.rs") || path == "CHANGELOG.md" {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let letters = line.replace([' ', '_'], "").to_lowercase();
            let may_be_there = SECOND_WORDS.iter().filter(|(second, _)| letters.contains(second));
            for (second, word) in may_be_there {
                let found = runs_of_words(line).iter().any(|run| has_word(run, second));
                assert!(!found, "{path}:{}: {second:?} is called {word} here", number + 1);
            }
        }
    }
}

/// "Removing files" in a log reads as progress. A failure says what could not be done, and what
/// follows.
#[test]
fn failures_in_logs_do_not_read_as_progress() {
    for (path, text) in files("rs") {
        for call in ["warn!(", "error!("] {
            for (at, _) in text.match_indices(call) {
                let rest = &text[at..];
                let end = rest.find(");").unwrap_or(rest.len());
                // Among them the message, and perhaps the target and fields.
                for text in rest[..end].split('"').skip(1).step_by(2) {
                    let first = text.split([' ', ':']).next().unwrap_or_default();
                    assert!(!first.ends_with("ing"), "{path}: {text:?}");
                }
            }
        }
    }
}

/// A reader who looks up one comment has not read the one before it.
#[test]
fn comments_begin_with_the_thing() {
    for (path, text) in files("rs") {
        let mut before = None;
        for (number, line) in text.lines().map(str::trim_start).enumerate() {
            let mark = ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark));
            let said = mark.filter(|_| mark != before).and_then(|mark| line.strip_prefix(mark));
            let said = said.unwrap_or_default().trim_start();
            let word = said.split([' ', ',', '.', ':', '\'']).next().unwrap_or_default();
            let found = PRONOUNS.contains(&word) || said.starts_with("The same");
            assert!(!found, "{path}:{}: {line} (name the thing)", number + 1);
            before = mark;
        }
    }
}
