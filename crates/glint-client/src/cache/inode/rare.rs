//! Parts of an inode that few inodes need: most of what a client has cached was only looked at, and
//! a scan of a large tree caches all of it.

use std::fmt;
use std::ops::Deref;

/// A part that is made when it is changed first; until then it reads as [`Blank::blank`].
pub(crate) struct Rare<T>(Option<Box<T>>);

/// A part that is blank in most inodes.
pub(crate) trait Blank: Default + 'static {
    /// What [`Default::default`] makes, one for all.
    fn blank() -> &'static Self;
}

/// Makes one static value the blank one of a type.
macro_rules! blank {
    ($part:ty) => {
        impl $crate::cache::inode::rare::Blank for $part {
            fn blank() -> &'static $part {
                static BLANK: std::sync::LazyLock<$part> =
                    std::sync::LazyLock::new(Default::default);
                &BLANK
            }
        }
    };
}
pub(crate) use blank;

impl<T> Default for Rare<T> {
    fn default() -> Rare<T> {
        Rare(None)
    }
}

impl<T: fmt::Debug> fmt::Debug for Rare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Blank> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::blank())
    }
}

impl<T: Default> Rare<T> {
    /// The part, to change it. Makes it if it was blank.
    pub(crate) fn make(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }

    /// Whether the part was made.
    #[cfg(test)]
    pub(crate) fn is_made(&self) -> bool {
        self.0.is_some()
    }

    /// The part, to change it in a way that leaves a blank one blank; `None` if it is.
    pub(crate) fn made(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}
