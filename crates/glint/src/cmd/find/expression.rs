//! The words of an expression, as a tree.

use super::action::{self, Action};
use super::age::{AskedAge, DAY, MINUTE, point_in_time};
use super::asks::Asks;
use super::layout::{self, WantedLayout};
use super::perm::Perm;
use super::print::Format;
use super::test::{Comparison, Test, Unit, types};
use crate::cmd::tree::c_library::{Pattern, group_id, user_id};
use crate::cmd::tree::show::TimeOf;
use crate::cmd::tree::without_number;
use glint_proto::{Errno, Timestamp};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;

/// Parentheses within parentheses, at most: the parser and all that walks a tree are recursive.
const DEPTH_MAX: usize = 200;

/// An expression.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Expression {
    Test(Test),
    Not(Box<Expression>),
    /// True if all are; what comes after one that is not is not looked at.
    All(Vec<Expression>),
    /// True if one is; what comes after it is not looked at.
    Any(Vec<Expression>),
    /// As true as the last one; all are looked at.
    List(Vec<Expression>),
    /// Takes what is below a directory out of the walk.
    Prune,
    /// Ends the walk.
    Quit,
    /// Prints the path, and this byte.
    Print(u8),
    Printf(Format),
    /// Prints a JSON object in a line.
    Json,
    /// Prints a line as `ls -dils` does, which shows years instead of hours far from this time.
    Ls(Timestamp),
    /// Takes the action with this number.
    Action(usize),
}

/// What was said after the starting points.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct FindCall {
    pub(super) expression: Expression,
    pub(super) actions: Vec<Action>,
    /// Patterns of -xattr.
    pub(super) xattrs: Vec<Pattern>,
    /// OSTs that were named.
    pub(super) osts: Vec<u16>,
    pub(super) asks: Asks,
    pub(super) depth_min: usize,
    pub(super) depth_max: usize,
    /// What is in a directory comes before the directory.
    pub(super) contents_first: bool,
}

/// Returns how many of the words say, before the starting points, that links are not followed.
pub(super) fn count_options(words: &[OsString]) -> usize {
    words.iter().take_while(|word| *word == "-P").count()
}

/// Returns how many of the words are starting points.
pub(super) fn count_starts(words: &[OsString]) -> usize {
    let begins = |word: &OsString| {
        let word = word.as_bytes();
        (word.starts_with(b"-") && word.len() > 1) || [&b"("[..], b")", b"!", b","].contains(&word)
    };
    words.iter().position(begins).unwrap_or(words.len())
}

/// Parses an expression. `now` is what ages are counted from; `json` is how files are printed if no
/// word says how.
pub(super) fn parse(words: &[OsString], now: Timestamp, json: bool) -> Result<FindCall, String> {
    let mut parser = Parser {
        words: words.iter(),
        now,
        has_action: false,
        actions: Vec::new(),
        xattrs: Vec::new(),
        osts: Vec::new(),
        prunes: false,
        says_depth: false,
        open: 0,
        depth_min: 0,
        depth_max: usize::MAX,
        contents_first: false,
    };
    let mut expression = match words.is_empty() {
        true => Expression::All(Vec::new()),
        false => parser.list()?,
    };
    if let Some(word) = parser.peek() {
        return Err(format!("{word:?} has no '(' before it"));
    }
    if !parser.has_action {
        let print = if json { Expression::Json } else { Expression::Print(b'\n') };
        expression = Expression::All(vec![expression, print]);
    } else if json {
        return Err("--json and an action exclude each other".into());
    }
    if parser.actions.contains(&Action::Delete) && parser.prunes && !parser.says_depth {
        return Err(
            "-delete looks at a directory after what is in it, where -prune does nothing; \
                    say -depth if that is what you want"
                .into(),
        );
    }
    let Parser { actions, xattrs, osts, depth_min, depth_max, contents_first, .. } = parser;
    let asks = Asks::of(&expression);
    Ok(FindCall { expression, actions, xattrs, osts, asks, depth_min, depth_max, contents_first })
}

struct Parser<'a> {
    words: std::slice::Iter<'a, OsString>,
    now: Timestamp,
    has_action: bool,
    actions: Vec<Action>,
    xattrs: Vec<Pattern>,
    osts: Vec<u16>,
    prunes: bool,
    says_depth: bool,
    open: usize,
    depth_min: usize,
    depth_max: usize,
    contents_first: bool,
}

/// One expression, or several as `group` combines them.
fn combined(
    mut parts: Vec<Expression>,
    group: impl FnOnce(Vec<Expression>) -> Expression,
) -> Expression {
    match parts.len() {
        1 => parts.remove(0),
        _ => group(parts),
    }
}

impl Parser<'_> {
    fn peek(&self) -> Option<&str> {
        // Words that are operators are text.
        self.words.as_slice().first().map(|word| word.to_str().unwrap_or_default())
    }

    fn takes(&mut self, operators: &[&str]) -> bool {
        let takes = self.peek().is_some_and(|word| operators.contains(&word));
        if takes {
            self.words.next();
        }
        takes
    }

    fn list(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.any()?];
        while self.takes(&[","]) {
            parts.push(self.any()?);
        }
        Ok(combined(parts, Expression::List))
    }

    fn any(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.all()?];
        while self.takes(&["-o", "-or"]) {
            parts.push(self.all()?);
        }
        Ok(combined(parts, Expression::Any))
    }

    fn all(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.not()?];
        loop {
            let operator = self.takes(&["-a", "-and"]);
            let ends = self.peek().is_none_or(|word| [",", ")", "-o", "-or"].contains(&word));
            if ends && !operator {
                return Ok(combined(parts, Expression::All));
            }
            parts.push(self.not()?);
        }
    }

    fn not(&mut self) -> Result<Expression, String> {
        let mut negated = false;
        while self.takes(&["!", "-not"]) {
            negated = !negated;
        }
        let one = self.one()?;
        Ok(if negated { Expression::Not(Box::new(one)) } else { one })
    }

    fn one(&mut self) -> Result<Expression, String> {
        let Some(word) = self.words.next() else {
            return Err("the expression ends where a test or an action is expected".into());
        };
        let name = word.to_str().ok_or_else(|| format!("{word:?} is no test and no action"))?;
        match name {
            "(" => {
                self.open += 1;
                if self.open > DEPTH_MAX {
                    return Err(format!("more than {DEPTH_MAX} parentheses within each other"));
                }
                let inner = self.list()?;
                self.open -= 1;
                match self.takes(&[")"]) {
                    true => Ok(inner),
                    false => Err("a '(' has no ')' after it".into()),
                }
            }
            ")" | "," | "-o" | "-or" | "-a" | "-and" => {
                Err(format!("{name:?} stands where a test or an action is expected"))
            }
            _ => self.primary(name),
        }
    }

    fn primary(&mut self, name: &str) -> Result<Expression, String> {
        let test = match name {
            "-name" => Test::Name(self.pattern(name, false)?),
            "-iname" => Test::Name(self.pattern(name, true)?),
            "-path" | "-wholename" => Test::Path(self.pattern(name, false)?),
            "-ipath" | "-iwholename" => Test::Path(self.pattern(name, true)?),
            "-lname" => Test::Target(self.pattern(name, false)?),
            "-ilname" => Test::Target(self.pattern(name, true)?),
            "-type" => Test::Type(types(&self.text(name)?)?),
            "-size" => self.size()?,
            "-perm" => Test::Perm(Perm::parse(&self.text(name)?)?),
            "-links" => Test::Links(self.number(name)?),
            "-inum" => Test::Ino(self.number(name)?),
            "-uid" => Test::Uid(self.number(name)?),
            "-gid" => Test::Gid(self.number(name)?),
            "-user" => Test::Uid(self.id(name, user_id, "user")?),
            "-group" => Test::Gid(self.id(name, group_id, "group")?),
            "-nouser" => Test::NoUser,
            "-nogroup" => Test::NoGroup,
            "-empty" => Test::Empty,
            "-layout" => Test::Layout(WantedLayout::parse(&self.text(name)?)?),
            "-ost" => {
                let osts = layout::osts(&self.text(name)?)?;
                self.osts.extend_from_slice(&osts);
                Test::Ost(osts)
            }
            "-xattr" => {
                let pattern = self.pattern(name, false)?;
                self.xattrs.push(pattern);
                Test::Xattr(self.xattrs.len() - 1)
            }
            "-true" => Test::Constant(true),
            "-false" => Test::Constant(false),
            "-mtime" => self.aged(name, TimeOf::Data, DAY)?,
            "-atime" => self.aged(name, TimeOf::Access, DAY)?,
            "-ctime" => self.aged(name, TimeOf::Inode, DAY)?,
            "-mmin" => self.aged(name, TimeOf::Data, MINUTE)?,
            "-amin" => self.aged(name, TimeOf::Access, MINUTE)?,
            "-cmin" => self.aged(name, TimeOf::Inode, MINUTE)?,
            "-newer" => self.newer(name, "mm")?,
            "-anewer" => self.newer(name, "am")?,
            "-cnewer" => self.newer(name, "cm")?,
            _ if name.starts_with("-newer") => self.newer(name, &name["-newer".len()..])?,
            "-maxdepth" => {
                self.depth_max = self.level(name)?;
                Test::Constant(true)
            }
            "-mindepth" => {
                self.depth_min = self.level(name)?;
                Test::Constant(true)
            }
            "-depth" | "-d" => {
                self.says_depth = true;
                self.contents_first = true;
                Test::Constant(true)
            }
            // What is mounted over a directory is never seen.
            "-xdev" | "-mount" => Test::Constant(true),
            "-prune" => {
                self.prunes = true;
                return Ok(Expression::Prune);
            }
            "-quit" => return Ok(Expression::Quit),
            "-print" => return Ok(self.action(Expression::Print(b'\n'))),
            "-print0" => return Ok(self.action(Expression::Print(0))),
            "-printf" => {
                let format = Format::parse(self.word(name)?.as_bytes())?;
                return Ok(self.action(Expression::Printf(format)));
            }
            "-ls" => return Ok(self.action(Expression::Ls(self.now))),
            "-delete" => {
                self.contents_first = true;
                return Ok(self.take(Action::Delete));
            }
            "-exec" => {
                let (taken, action) = action::command(self.words.as_slice())?;
                self.words = self.words.as_slice()[taken..].iter();
                return Ok(self.take(action));
            }
            "-L" | "-H" | "-follow" => {
                return Err(format!("{name}: symbolic links are not followed; find(1) does it"));
            }
            "--json" | "-P" => {
                return Err(format!("{name} comes before the paths, as all options do"));
            }
            _ if name.starts_with('-') => {
                return Err(format!("{name} is no test and no action of this command"));
            }
            _ => return Err(format!("{name:?}: paths come before the expression")),
        };
        Ok(Expression::Test(test))
    }

    fn action(&mut self, action: Expression) -> Expression {
        self.has_action = true;
        action
    }

    fn take(&mut self, action: Action) -> Expression {
        self.actions.push(action);
        self.action(Expression::Action(self.actions.len() - 1))
    }

    fn word(&mut self, name: &str) -> Result<&OsString, String> {
        self.words.next().ok_or_else(|| format!("{name} needs a word after it"))
    }

    fn text(&mut self, name: &str) -> Result<String, String> {
        let word = self.word(name)?;
        word.to_str().map(str::to_owned).ok_or_else(|| format!("{name} {word:?}: not understood"))
    }

    fn pattern(&mut self, name: &str, ignores_case: bool) -> Result<Pattern, String> {
        let word = self.word(name)?.clone().into_vec();
        Pattern::new(&word, ignores_case).ok_or_else(|| format!("{name}: a pattern has no byte 0"))
    }

    fn number(&mut self, name: &str) -> Result<Comparison, String> {
        let text = self.text(name)?;
        Comparison::parse(&text).ok_or_else(|| format!("{name} {text:?}: say N, +N or -N"))
    }

    fn level(&mut self, name: &str) -> Result<usize, String> {
        let text = self.text(name)?;
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let level = digits.then(|| text.parse().ok()).flatten();
        level.ok_or_else(|| format!("{name} {text:?}: say a number of levels, 0 or more"))
    }

    fn id(
        &mut self,
        name: &str,
        find: fn(&str) -> Result<Option<u32>, Errno>,
        what: &str,
    ) -> Result<Comparison, String> {
        let text = self.text(name)?;
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| text.parse::<u32>().ok()).flatten();
        let id = find(&text).map_err(|error| {
            let error = error.to_string();
            format!("{name} {text:?}: looking up the {what}: {}", without_number(&error))
        })?;
        let id = id.or(number).map(u64::from);
        let id = id.ok_or_else(|| format!("{name} {text:?}: there is no {what} of that name"))?;
        Ok(Comparison::Exactly(id))
    }

    fn size(&mut self) -> Result<Test, String> {
        let text = self.text("-size")?;
        let (number, unit) = match text.char_indices().next_back() {
            Some((at, letter)) if !letter.is_ascii_digit() => (&text[..at], Unit::parse(letter)),
            _ => (&text[..], Some(Unit(512))),
        };
        let size = Comparison::parse(number).zip(unit).map(|(count, unit)| Test::Size(count, unit));
        size.ok_or_else(|| format!("-size {text:?}: say a number and one of c w b k M G"))
    }

    fn aged(&mut self, name: &str, of: TimeOf, unit: u64) -> Result<Test, String> {
        let text = self.text(name)?;
        let age = AskedAge::parse(&text, unit);
        let age = age.ok_or_else(|| format!("{name} {text:?}: say N, +N or -N"))?;
        Ok(Test::Age { of, age, now: self.now })
    }

    /// -newerXY: time X of a file is after time Y of another one, or after time t.
    fn newer(&mut self, name: &str, times: &str) -> Result<Test, String> {
        let of = |letter| match letter {
            b'a' => Some(TimeOf::Access),
            b'm' => Some(TimeOf::Data),
            b'c' => Some(TimeOf::Inode),
            _ => None,
        };
        let [x, y] = *times.as_bytes() else {
            return Err(format!("{name} is no test and no action of this command"));
        };
        let (Some(of), true) = (of(x), y == b't' || of(y).is_some()) else {
            return Err(format!("{name}: say a, c or m, and then one of these or t"));
        };
        if y == b't' {
            let text = self.text(name)?;
            let than = point_in_time(&text).ok_or_else(|| {
                format!("{name} {text:?}: say YYYY-MM-DD, YYYY-MM-DD HH:MM:SS, or @SECONDS")
            })?;
            return Ok(Test::Newer { of, than });
        }
        let path = self.word(name)?;
        let found = std::fs::symlink_metadata(path).map_err(|e| format!("{name} {path:?}: {e}"))?;
        let (secs, nanos) = match y {
            b'a' => (found.atime(), found.atime_nsec()),
            b'c' => (found.ctime(), found.ctime_nsec()),
            _ => (found.mtime(), found.mtime_nsec()),
        };
        Ok(Test::Newer { of, than: Timestamp { secs, nanos: nanos as u32 } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Result<FindCall, String> {
        let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        parse(&words, Timestamp { secs: 0, nanos: 0 }, false)
    }

    fn constant(value: bool) -> Expression {
        Expression::Test(Test::Constant(value))
    }

    #[test]
    fn and_binds_closer_than_or_and_or_than_a_comma() {
        let (yes, no, print) = (constant(true), constant(false), Expression::Print(b'\n'));
        let all = |parts: &[&Expression]| Expression::All(parts.iter().copied().cloned().collect());
        let any = Expression::Any(vec![yes.clone(), all(&[&no, &print])]);
        for (text, expected) in [
            ("-true -o -false -print", any.clone()),
            ("-true -or -false -and -print", any.clone()),
            ("( -true -o -false ) -print", {
                all(&[&Expression::Any(vec![yes.clone(), no.clone()]), &print])
            }),
            ("! ! ! -true , -print", {
                Expression::List(vec![Expression::Not(Box::new(yes.clone())), print.clone()])
            }),
            ("-true -o -false", all(&[&Expression::Any(vec![yes.clone(), no.clone()]), &print])),
            ("-prune", all(&[&Expression::Prune, &print])),
        ] {
            assert_eq!(call(text).unwrap().expression, expected, "{text}");
        }
    }

    #[test]
    fn an_error_names_the_word() {
        for (text, told) in [
            ("-nmae x", "-nmae"),
            ("-name", "-name needs"),
            ("( -true", "has no ')'"),
            ("-true )", "has no '('"),
            ("-true -o", "ends where"),
            ("-o -true", "\"-o\" stands"),
            ("-true -a , -true", "\",\" stands"),
            ("-size 5x", "-size \"5x\""),
            ("-size k", "-size \"k\""),
            ("-type fd", "-type \"fd\""),
            ("-maxdepth -1", "-maxdepth \"-1\""),
            ("-perm 9", "-perm \"9\""),
            ("-type f,d,f", "twice"),
            ("-user +0", "no user"),
            ("-mtime 1.5.2", "-mtime \"1.5.2\""),
            ("-newerBm /", "-newerBm"),
            ("-newermt never", "-newermt \"never\""),
            ("-newerer x", "-newerer"),
            ("-L", "not followed"),
            ("--json", "--json comes before the paths"),
            ("-true -P", "-P comes before the paths"),
            ("-user no-such-user", "no user"),
            ("-true file", "paths come before"),
            ("-printf %Q", "%Q"),
            ("-xattr", "-xattr needs"),
            ("-layout", "-layout needs"),
            ("-layout stripes=2", "-layout \"stripes=2\""),
            ("-ost +1", "-ost \"+1\""),
        ] {
            let said = call(text).unwrap_err();
            assert!(said.contains(told), "{text}: {said}");
        }
        assert!(call(&"( ".repeat(100_000)).unwrap_err().contains("200"));
    }

    #[test]
    fn paths_end_where_the_expression_begins() {
        for (text, count) in [("a b -name x", 2), ("", 0), ("( a )", 0), ("- a ! b", 2)] {
            let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
            assert_eq!(count_starts(&words), count, "{text}");
        }
    }
}
