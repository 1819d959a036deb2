//! Memory for a run that is larger than it: an allocator whose largest pieces lie on disk once they come to too much together.
//!
//! What figures need of a request is some 80 bytes, so that a hundred million come to 8 GiB, through which each pass goes from front to back. Anonymous
//! memory of that size gets a process killed; pages of a file the kernel writes out and reads back as it needs. So once [`IN_MEMORY`] is taken by pieces of
//! [`LEAST`] or more, further ones are mapped from files without a name, which are gone with the process however it dies, and a thread lets go of their
//! pages that are mapped, so that they don't count as the process's own. Their blocks are reserved beforehand: a disk that is full is found out here, where
//! memory is left, and not by a signal at a write. Columns that know of files lost: every figure is computed on slices, by crates that know no machine.
//!
//! Only Linux has what this needs. Where no folder for such files lies on a disk, all memory is memory.
#![expect(
    unsafe_code,
    reason = "an allocator hands out raw memory, and no safe crate lets one lie in a file"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, CString};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::fcntl::{FallocateFlags, OFlag, fallocate, open};
use nix::sys::mman::{MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mremap, munmap};
use nix::sys::stat::Mode;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

/// Smaller pieces are always memory.
const LEAST: usize = 16 << 20;
/// Larger pieces are memory until they come to so much together.
const IN_MEMORY: usize = 384 << 20;
/// Pages of files that may be mapped before they are let go of, and how often that is looked at: in that time as much again is touched at most.
const MAPPED: usize = 192 << 20;
const LOOKS: Duration = Duration::from_millis(10);
/// Pieces that may lie on disk at once: a run has some thirty columns.
const PIECES: usize = 128;
/// What a mapping is aligned to.
const PAGE: usize = 4096;

/// A piece that lies on disk.
struct Piece {
    at: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

/// The allocator: see the module. It is the system's until [`Large::spill`].
pub struct Large {
    /// Where files may lie; unset = nowhere.
    folder: OnceLock<CString>,
    /// Bytes of large pieces that are memory.
    held: AtomicUsize,
    /// Bytes of them that are let be memory.
    most: usize,
    pieces: Mutex<[Option<Piece>; PIECES]>,
}

// SAFETY: the pointers of pieces are looked at by their number alone, under the lock; what lies there is its owner's.
unsafe impl Sync for Large {}

impl Default for Large {
    fn default() -> Large {
        Large::new()
    }
}

impl Large {
    /// One that has everything in memory.
    pub const fn new() -> Large {
        Large::beyond(IN_MEMORY)
    }

    const fn beyond(most: usize) -> Large {
        let pieces = Mutex::new([const { None }; PIECES]);
        Large { folder: OnceLock::new(), held: AtomicUsize::new(0), most, pieces }
    }

    /// From now on large pieces may lie on disk: in `TMPDIR`, else in `/var/tmp`, else in `/tmp`, the first that is one. Where none is, nothing changes.
    pub fn spill(&'static self) {
        if self.folder.get().is_some() {
            return;
        }
        let given = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
        let folders = given.into_iter().chain(["/var/tmp".into(), "/tmp".into()]);
        let named = |folder: std::ffi::OsString| CString::new(folder.as_bytes()).ok();
        let Some(folder) = folders.filter_map(named).find(|folder| is_on_disk(folder)) else { return };
        let begun = std::thread::Builder::new().name("pages".into()).spawn(|| self.let_go());
        if begun.is_ok() {
            let _ = self.folder.set(folder);
        }
    }

    /// Lets go of pages whenever too many are mapped.
    fn let_go(&self) {
        loop {
            std::thread::sleep(LOOKS);
            let pieces = self.pieces();
            if pieces.iter().all(Option::is_none) || mapped().is_none_or(|mapped| mapped < MAPPED) {
                continue;
            }
            for piece in pieces.iter().flatten() {
                // SAFETY: the mapping is shared and of a file, so that its pages stay in the file and come back as they were at the next touch.
                let _ = unsafe { madvise(piece.at.cast(), piece.bytes, MmapAdvise::MADV_DONTNEED) };
            }
        }
    }

    fn pieces(&self) -> MutexGuard<'_, [Option<Piece>; PIECES]> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Are so many bytes of a large piece too much beside those that are held?
    fn is_too_much(&self, bytes: usize) -> bool {
        self.folder.get().is_some() && self.held.load(Relaxed).saturating_add(bytes) > self.most
    }

    /// So many zero bytes on disk; `None` = they are to be memory: few enough, or the disk has no room, or there are too many pieces.
    fn on_disk(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() < LEAST || layout.align() > PAGE || !self.is_too_much(layout.size()) {
            return None;
        }
        let folder = self.folder.get()?;
        let mut pieces = self.pieces();
        let place = pieces.iter_mut().find(|piece| piece.is_none())?;
        let file = unnamed(folder)?;
        fallocate(&file, FallocateFlags::empty(), 0, layout.size() as i64).ok()?;
        let (bytes, both) = (NonZeroUsize::new(layout.size())?, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        // SAFETY: a new mapping, of a file that nobody else can open.
        let at = unsafe { mmap(None, bytes, both, MapFlags::MAP_SHARED, &file, 0) }.ok()?.cast();
        *place = Some(Piece { at, bytes: bytes.get(), file });
        Some(at.as_ptr())
    }

    /// Gives a piece back that lies on disk; `false` = it does not.
    fn is_given_back(&self, at: *mut u8) -> bool {
        let mut pieces = self.pieces();
        let found = pieces.iter_mut().find(|piece| piece.as_ref().is_some_and(|p| p.at.as_ptr() == at));
        let Some(piece) = found.and_then(Option::take) else { return false };
        // SAFETY: it was mapped by `on_disk`, and its owner has no more use of it.
        let _ = unsafe { munmap(piece.at.cast(), piece.bytes) };
        true
    }

    /// Makes a piece longer or shorter that lies on disk. `None` = it does not; `Some(None)` = it can't be.
    fn resized(&self, at: *mut u8, bytes: usize) -> Option<Option<*mut u8>> {
        let mut pieces = self.pieces();
        let piece = pieces.iter_mut().flatten().find(|piece| piece.at.as_ptr() == at)?;
        let room = fallocate(&piece.file, FallocateFlags::empty(), 0, bytes as i64);
        if bytes < LEAST || room.is_err() {
            return Some(None);
        }
        // SAFETY: the whole of a mapping of ours, whose owner holds no reference into it while it asks for another size.
        let moved = unsafe { mremap(piece.at.cast(), piece.bytes, bytes, MRemapFlags::MREMAP_MAYMOVE, None) };
        let Ok(moved) = moved else { return Some(None) };
        (piece.at, piece.bytes) = (moved.cast(), bytes);
        Some(Some(piece.at.as_ptr()))
    }

    fn count(&self, bytes: usize) {
        if bytes >= LEAST {
            self.held.fetch_add(bytes, Relaxed);
        }
    }

    fn uncount(&self, bytes: usize) {
        if bytes >= LEAST {
            self.held.fetch_sub(bytes, Relaxed);
        }
    }
}

// SAFETY: what is not on disk is the system's in every respect. A piece on disk is a mapping of its own, aligned to a page, as long as asked or longer, zero at first
// and nobody else's until it is given back, which is told by its address. Nothing here allocates.
unsafe impl GlobalAlloc for Large {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(at) = self.on_disk(layout) {
            return at;
        }
        // SAFETY: as the caller's.
        let at = unsafe { System.alloc(layout) };
        if !at.is_null() {
            self.count(layout.size());
        }
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(at) = self.on_disk(layout) {
            return at;
        }
        // SAFETY: as the caller's.
        let at = unsafe { System.alloc_zeroed(layout) };
        if !at.is_null() {
            self.count(layout.size());
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() >= LEAST && self.is_given_back(at) {
            return;
        }
        self.uncount(layout.size());
        // SAFETY: it is no piece on disk, so it came from there.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let resized = if layout.size() >= LEAST { self.resized(at, bytes) } else { None };
        match resized {
            Some(Some(moved)) => moved,
            None if bytes < LEAST || !self.is_too_much(bytes.saturating_sub(layout.size())) => {
                // SAFETY: it is no piece on disk, so it came from there.
                let moved = unsafe { System.realloc(at, layout, bytes) };
                if !moved.is_null() {
                    self.uncount(layout.size());
                    self.count(bytes);
                }
                moved
            }
            // From memory to disk, or, where the disk is full or the rest is small, back.
            _ => {
                // SAFETY: the caller's bytes, of the caller's alignment, are no more than a layout may have.
                let to = unsafe { self.alloc(Layout::from_size_align_unchecked(bytes, layout.align())) };
                if !to.is_null() {
                    // SAFETY: both are at least so long, and apart.
                    unsafe {
                        ptr::copy_nonoverlapping(at, to, layout.size().min(bytes));
                        self.dealloc(at, layout);
                    }
                }
                to
            }
        }
    }
}

/// A file that has no name and goes with the last who holds it.
fn unnamed(folder: &CStr) -> Option<OwnedFd> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    open(folder, flags, Mode::S_IRUSR | Mode::S_IWUSR).ok()
}

/// Can files without a name lie there, and are they on a disk? A file system in memory would take what this is to save.
fn is_on_disk(folder: &CStr) -> bool {
    let is_memory = statfs(folder).is_ok_and(|of| of.filesystem_type() == TMPFS_MAGIC);
    !is_memory && unnamed(folder).is_some()
}

/// Bytes of files that are mapped and in memory.
fn mapped() -> Option<usize> {
    let told = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = told.lines().find_map(|line| line.strip_prefix("RssFile:"))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 8).expect("a layout")
    }

    /// All of a length hold what was put there, a byte a page.
    #[track_caller]
    fn holds(at: *mut u8, bytes: usize, of: impl Fn(usize) -> u8) {
        for page in (0..bytes).step_by(PAGE) {
            // SAFETY: `at` is a piece of so many bytes.
            assert_eq!(unsafe { at.add(page).read() }, of(page), "byte {page}");
        }
    }

    fn fill(at: *mut u8, bytes: usize) {
        for page in (0..bytes).step_by(PAGE) {
            // SAFETY: as above.
            unsafe { at.add(page).write(mark(page)) };
        }
    }

    fn mark(page: usize) -> u8 {
        (page / PAGE % 251) as u8 + 1
    }

    fn lie_on_disk(large: &Large) -> usize {
        large.pieces().iter().flatten().count()
    }

    /// A piece goes to disk, grows there, loses its pages, comes back into memory, and is what it was throughout.
    #[test]
    fn pieces_are_what_they_were_wherever_they_lie() {
        static LARGE: Large = Large::beyond(20 * MIB);
        LARGE.spill();
        let folder = LARGE.folder.get().expect("a folder on a disk").clone();
        // SAFETY: each pointer is used with the layout it has at the time.
        unsafe {
            let first = LARGE.alloc_zeroed(layout(18 * MIB));
            assert_eq!((lie_on_disk(&LARGE), LARGE.held.load(Relaxed)), (0, 18 * MIB), "few enough");
            fill(first, 18 * MIB);
            let second = LARGE.alloc_zeroed(layout(17 * MIB));
            assert_eq!(lie_on_disk(&LARGE), 1);
            holds(second, 17 * MIB, |_| 0);
            fill(second, 17 * MIB);
            let second = LARGE.realloc(second, layout(17 * MIB), 40 * MIB);
            holds(second, 40 * MIB, |page| if page < 17 * MIB { mark(page) } else { 0 });

            // What grows goes there too, and no longer counts as memory.
            let first = LARGE.realloc(first, layout(18 * MIB), 36 * MIB);
            assert_eq!((lie_on_disk(&LARGE), LARGE.held.load(Relaxed)), (2, 0));
            for piece in LARGE.pieces().iter().flatten() {
                madvise(piece.at.cast(), piece.bytes, MmapAdvise::MADV_DONTNEED).expect("let go of");
            }
            holds(first, 18 * MIB, mark);
            holds(second, 17 * MIB, mark);

            let first = LARGE.realloc(first, layout(36 * MIB), MIB);
            assert_eq!((lie_on_disk(&LARGE), LARGE.held.load(Relaxed)), (1, 0), "small ones are memory");
            holds(first, MIB, mark);
            LARGE.dealloc(first, layout(MIB));
            LARGE.dealloc(second, layout(40 * MIB));
        }
        assert_eq!((lie_on_disk(&LARGE), LARGE.held.load(Relaxed)), (0, 0));
        assert!(is_on_disk(&folder));
    }

    /// A disk without room and a folder that is memory leave all as it was.
    #[test]
    fn where_the_disk_has_no_room_memory_is_memory() {
        static LARGE: Large = Large::beyond(0);
        LARGE.spill();
        let wide = Layout::from_size_align(LEAST, 2 * PAGE).expect("a layout");
        // SAFETY: as above.
        unsafe {
            assert!(LARGE.alloc(layout(1 << 46)).is_null(), "neither has 64 TiB");
            let at = LARGE.alloc(wide);
            assert_eq!((lie_on_disk(&LARGE), LARGE.held.load(Relaxed)), (0, LEAST));
            LARGE.dealloc(at, wide);
        }
        assert!(!is_on_disk(c"/dev/shm") && !is_on_disk(c"/proc") && !is_on_disk(c"/nowhere"));
    }
}
