//! A state in parts.

/// A state in parts, each under a lock of its own: who has to do with one key waits for nobody who
/// has to do with another, but for one in so many.
#[derive(Debug)]
pub struct Sharded<T>(Box<[T]>);

impl<T: Default> Sharded<T> {
    /// A state in so many parts.
    pub fn new(parts: usize) -> Sharded<T> {
        Sharded((0..parts).map(|_| T::default()).collect())
    }
}

impl<T> Sharded<T> {
    /// The part of a key.
    pub fn of(&self, key: u64) -> &T {
        // Of inode numbers, blocks of 64 belong to one directory, and its subdirectories to it.
        &self.0[((key ^ key >> 6) % self.0.len() as u64) as usize]
    }

    /// All parts.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }
}

impl<'a, T> IntoIterator for &'a Sharded<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
