//! Bits of one inode, as a client holds them.

use glint_proto::lock::Bits;

/// Bits of one inode.
#[derive(Clone, Default, Debug)]
pub struct HeldBits {
    bits: Bits,
    /// For each bit, the number of its last recall; `None` before the first, which for most inodes
    /// never comes.
    asked: Option<Box<[u64; Bits::COUNT]>>,
    /// The highest number of a grant.
    granted: u64,
}

impl HeldBits {
    /// Bits that may be used.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// Whether all of these may be used.
    pub fn has(&self, bits: Bits) -> bool {
        self.bits.contains(bits)
    }

    /// The highest number of a grant that has come.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// A grant has come. Returns what of it may be used.
    pub fn grant(&mut self, bits: Bits, number: u64) -> Bits {
        self.granted = self.granted.max(number);
        let mut usable = Bits::NONE;
        for at in 0..Bits::COUNT {
            let asked = self.asked.as_ref().map_or(0, |asked| asked[at]);
            if asked < number {
                usable |= Bits(1 << at) & bits;
            }
        }
        self.bits |= usable;
        usable
    }

    /// Bits are recalled. Returns those that were held.
    pub fn recall(&mut self, bits: Bits, number: u64) -> Bits {
        for (at, asked) in self.asked.get_or_insert_default().iter_mut().enumerate() {
            if bits.contains(Bits(1 << at)) {
                *asked = number.max(*asked);
            }
        }
        let lost = self.bits & bits;
        self.bits = self.bits & !bits;
        lost
    }

    /// Relies on none of them any more. The servers are not told.
    pub fn drop_all(&mut self) {
        self.bits = Bits::NONE;
    }

    /// Returns all that was granted, without a recall: the value is what the servers are to be
    /// told, also of bits that they count and have not said. [`Bits::DELEGATION`] is never
    /// withheld, and returned only by who knows that nothing waits under it.
    pub fn return_all(&mut self) -> Option<(Bits, u64)> {
        let bits = std::mem::take(&mut self.bits) | Bits::SHARED;
        (self.granted > 0).then_some((bits, self.granted))
    }
}
