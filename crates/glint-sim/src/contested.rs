//! A file that all workers of all clients write, one after the other, each with an fsync(2) before
//! the next: whatever happens, it holds what was written last.
//!
//! Invariant: nobody writes before all that was written before is on stable storage. So what
//! clients say again after a loss of power must not bring back what somebody else has replaced.

use crate::workload::{Fs, make};
use futures_util::lock::Mutex;
use glint_client::{Caller, Vfs, WriteHow};
use glint_proto::{FileType, Ino, OpenFlags, SetAttr};
use std::cell::RefCell;

const ROOT: &Caller = &Caller::ROOT;
const BYTES: usize = 100;

/// The file.
pub(crate) struct Contested {
    ino: Ino,
    turn: Mutex<()>,
    /// What it may be full of: two values after a client died while it wrote, and then nobody
    /// goes on.
    values: RefCell<Vec<u8>>,
}

impl Contested {
    pub(crate) async fn make(fs: &Fs) -> Result<Contested, String> {
        let text = |error: glint_proto::Errno| format!("the contested file: {error}");
        let regular = make(FileType::Regular);
        let made = fs.create(ROOT, Ino::ROOT, b"contested", regular, libc::O_RDWR).await;
        let open = made.map_err(text)?;
        fs.write(open.handle, 0, &[0; BYTES], WriteHow::default()).await.map_err(text)?;
        fs.release(open.handle).await.map_err(text)?;
        fs.sync().await.map_err(text)?;
        let values = RefCell::new(vec![0]);
        Ok(Contested { ino: open.attr.ino, turn: Mutex::default(), values })
    }

    /// A client looks at it, and writes something else if `anew` says whether to truncate it
    /// first.
    pub(crate) async fn turn(&self, fs: &Fs, anew: Option<bool>) -> Result<(), String> {
        let text = |error: glint_proto::Errno| format!("the contested file: {error}");
        let _turn = self.turn.lock().await;
        let values = self.values.borrow().clone();
        let [value] = values[..] else { return Ok(()) };
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let handle = fs.open(ROOT, self.ino, flags).await.map_err(text)?.handle;
        let mut data = vec![0xff; BYTES + 1];
        let len = fs.read(handle, 0, &mut data, true).await.map_err(text)?;
        if data[..len] != [value; BYTES] {
            return Err(format!("the contested file is {:?}, not {value}", &data[..len]));
        }
        if let Some(truncate) = anew {
            let next = value.wrapping_add(1);
            self.values.borrow_mut().push(next);
            if truncate {
                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                fs.setattr(ROOT, self.ino, &set).await.map_err(text)?;
            }
            fs.write(handle, 0, &[next; BYTES], WriteHow::default()).await.map_err(text)?;
            fs.fsync(handle).await.map_err(text)?;
            self.values.replace(vec![next]);
        }
        fs.release(handle).await.map_err(text)
    }
}
