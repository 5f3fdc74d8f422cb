//! Questions of a check of the namespace and of objects, which shows all of them: no server may
//! answer them to who is limited.

use super::{Dice, Hostile, STRIPES};
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{EntryPlace, NamespaceQuery};
use glint_proto::{Ino, ObjectId};

/// One that is there, and some that are not.
const OSTS: [u16; 3] = [0, 1, u16::MAX];

impl<D: Dice> Hostile<D> {
    /// Any part of the namespace or of the objects, or more of it than one may ask for at once.
    pub(super) fn namespace_query(&self) -> Option<NamespaceQuery> {
        let object = || Some(ObjectId { ino: self.ino()?, stripe: self.pick(&STRIPES)? });
        Some(match self.roll(9)? {
            0 => NamespaceQuery::Inodes(Ino(self.number()?)),
            1 => NamespaceQuery::Entries(Vec::new()),
            2 => NamespaceQuery::Entries(self.ino()?.key().to_vec()),
            3 => NamespaceQuery::Stored { ost: self.pick(&OSTS)?, after: None },
            4 => NamespaceQuery::Stored { ost: self.pick(&OSTS)?, after: Some(object()?) },
            5 => {
                let count = self.pick(&[0, 1, CHECKED_RECORDS_MAX + 1])?;
                let objects = vec![object()?; count];
                NamespaceQuery::StoredAgain { ost: self.pick(&OSTS)?, objects }
            }
            6 => {
                let count = self.pick(&[0, 1, CHECKED_RECORDS_MAX + 1])?;
                NamespaceQuery::Uses(vec![object()?; count])
            }
            7 => NamespaceQuery::Ends(Ino(self.number()?)),
            _ => {
                let (parent, cookie) = (self.ino()?, self.number()?);
                let place = EntryPlace { parent, cookie, name: self.name()?.to_vec() };
                let count = self.pick(&[0, 1, CHECKED_RECORDS_MAX + 1])?;
                NamespaceQuery::Again { inodes: vec![self.ino()?; count], entries: vec![place] }
            }
        })
    }
}
