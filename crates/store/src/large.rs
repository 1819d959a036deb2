//! Memory for a run that is larger than it: an allocator whose largest pieces lie on disk once they come to too much together.
//!
//! What figures need of a request is some 80 bytes, so that a hundred million come to 8 GiB, through which each pass goes from front to back. Anonymous
//! memory of that size gets a process killed; pages of a file the kernel writes out and reads back as it needs. So once [`IN_MEMORY`] is taken by pieces of
//! [`LEAST`] or more, further ones are mapped from files without a name, which are gone with the process however it dies, and a thread lets go of their
//! pages that are mapped, so that they don't count as the process's own. Columns that know of files lost: every figure is computed on slices, by crates that
//! know no machine.
//!
//! A write to a mapping can't fail: a file system without room kills the process by a signal. So only file systems are taken on which reserved blocks stay reserved
//! (a copy-on-write one takes new blocks for old pages), each piece is reserved whole beforehand, and room is left for others. What the disk lost nevertheless is
//! heard of when a piece is given back, and ends the process: figures from it would be wrong.
//!
//! Only Linux has what this needs. Where no folder for such files lies on a disk, or it has no room, all memory is memory.
#![expect(
    unsafe_code,
    reason = "an allocator hands out raw memory, and no safe crate lets one lie in a file"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, CString, OsString};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, open};
use nix::libc;
use nix::sys::mman::{MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mremap, munmap};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::stat::Mode;
use nix::sys::statfs::{FsType, statfs};
use nix::sys::statvfs::fstatvfs;

/// Smaller pieces are always memory.
const LEAST: usize = 16 << 20;
/// Larger pieces are memory until they come to so much together.
const IN_MEMORY: usize = 256 << 20;
/// Pages of files that may be mapped before they are let go of, and how often that is looked at: a pass touches 10 MB in a millisecond, and a busy machine looks late.
const MAPPED: usize = 64 << 20;
const LOOKS: Duration = Duration::from_millis(2);
/// Pieces that may lie on disk at once: a run has some thirty columns.
const PIECES: usize = 128;
/// What a mapping is aligned to at least.
const PAGE: usize = 4096;
/// Room that is left on a disk, bytes: a run may be written there meanwhile.
const LEFT: u64 = 1 << 30;
/// Magic numbers of ext4, XFS and the overlay of a container, which is one of them below (statfs(2)).
const ON_DISK: [FsType; 3] = [FsType(0xef53), FsType(0x5846_5342), FsType(0x794c_7630)];

/// A piece that lies on disk.
struct Piece {
    at: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

/// The allocator: see the module. It is the system's until [`Large::spill`].
pub struct Large {
    /// May further pieces lie on disk?
    spills: AtomicBool,
    /// Where files may lie, and the thread that lets go of their pages; `None` = nowhere.
    disk: OnceLock<Option<(CString, Thread)>>,
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
        let spills = AtomicBool::new(false);
        Large { spills, disk: OnceLock::new(), held: AtomicUsize::new(0), most, pieces }
    }

    /// From now on large pieces may lie on disk: in `TMPDIR`, else in `/var/tmp`, else in `/tmp`, the first that is on one. Where none is, nothing changes.
    pub fn spill(&'static self) {
        self.disk.get_or_init(|| {
            let given = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
            let folders = given.into_iter().chain(["/var/tmp".into(), "/tmp".into()]);
            let named = |folder: OsString| CString::new(folder.as_bytes()).ok();
            let folder = folders.filter_map(named).find(|folder| is_on_disk(folder))?;
            let thread = std::thread::Builder::new().name("pages".into()).spawn(|| self.let_go()).ok()?;
            Some((folder, thread.thread().clone()))
        });
        self.spills.store(true, Relaxed);
    }

    /// From now on further pieces are memory. Those that lie on disk stay there.
    pub fn hold(&self) {
        self.spills.store(false, Relaxed);
    }

    /// Lets go of pages whenever too many are mapped.
    fn let_go(&self) {
        loop {
            let pieces = self.pieces();
            if pieces.iter().all(Option::is_none) {
                drop(pieces);
                std::thread::park();
                continue;
            }
            if mapped().is_some_and(|mapped| mapped > MAPPED) {
                for piece in pieces.iter().flatten() {
                    // SAFETY: the mapping is shared and of a file, so that its pages stay in the file and come back as they were at the next touch.
                    let _ = unsafe { madvise(piece.at.cast(), piece.bytes, MmapAdvise::MADV_DONTNEED) };
                }
            }
            drop(pieces);
            std::thread::sleep(LOOKS);
        }
    }

    fn pieces(&self) -> MutexGuard<'_, [Option<Piece>; PIECES]> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many zero bytes on disk; `None` = they are to be memory: few enough beside those that are held, or the disk has no room, or there are too many pieces.
    fn on_disk(&self, layout: Layout) -> Option<*mut u8> {
        let is_much = self.held.load(Relaxed).saturating_add(layout.size()) > self.most;
        if layout.size() < LEAST || layout.align() > PAGE || !is_much || !self.spills.load(Relaxed) {
            return None;
        }
        let (folder, lets_go) = self.disk.get()?.as_ref()?;
        let mut pieces = self.pieces();
        let place = pieces.iter_mut().find(|piece| piece.is_none())?;
        let file = unnamed(folder)?;
        reserved(&file, 0, layout.size())?;
        let (bytes, both) = (NonZeroUsize::new(layout.size())?, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        // SAFETY: a new mapping, of a file that nobody else can open.
        let at = unsafe { mmap(None, bytes, both, MapFlags::MAP_SHARED, &file, 0) }.ok()?.cast();
        *place = Some(Piece { at, bytes: bytes.get(), file });
        lets_go.unpark();
        Some(at.as_ptr())
    }

    /// Gives a piece back that lies on disk; `false` = it does not.
    fn is_given_back(&self, at: *mut u8) -> bool {
        let mut pieces = self.pieces();
        let found = pieces.iter_mut().find(|piece| piece.as_ref().is_some_and(|p| p.at.as_ptr() == at));
        let Some(piece) = found.and_then(Option::take) else { return false };
        drop(pieces);
        // SAFETY: it was mapped by `on_disk`, and its owner has no more use of it.
        let _ = unsafe { munmap(piece.at.cast(), piece.bytes) };
        if is_lost(&piece.file) {
            ends_lost();
        }
        true
    }

    /// Makes a piece longer or shorter that lies on disk. `None` = it does not; `Some(None)` = it can't be.
    fn resized(&self, at: *mut u8, bytes: usize) -> Option<Option<*mut u8>> {
        let mut pieces = self.pieces();
        let piece = pieces.iter_mut().flatten().find(|piece| piece.at.as_ptr() == at)?;
        if bytes < LEAST || reserved(&piece.file, piece.bytes, bytes).is_none() {
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
        if let Some(Some(moved)) = resized {
            return moved;
        }
        // SAFETY: the caller's bytes, of the caller's alignment, are no more than a layout may have.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // From memory to disk, or back where the disk is full or what is left is small.
        let to = match resized {
            // SAFETY: a layout of the caller's.
            Some(_) => Some(unsafe { self.alloc(new) }),
            None => self.on_disk(new),
        };
        let Some(to) = to else {
            // SAFETY: it is no piece on disk, so it came from there.
            let moved = unsafe { System.realloc(at, layout, bytes) };
            if !moved.is_null() {
                self.uncount(layout.size());
                self.count(bytes);
            }
            return moved;
        };
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

/// A file that has no name and goes with the last who holds it.
fn unnamed(folder: &CStr) -> Option<OwnedFd> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    open(folder, flags, Mode::S_IRUSR | Mode::S_IWUSR).ok()
}

/// Can files without a name, of any length, lie there, and are they on a disk that keeps what it reserved?
fn is_on_disk(folder: &CStr) -> bool {
    let is_one = statfs(folder).is_ok_and(|of| ON_DISK.contains(&of.filesystem_type()));
    let any_length = getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(most, _)| most == RLIM_INFINITY);
    is_one && any_length && unnamed(folder).is_some()
}

/// Blocks for a file that is to grow; `None` = the disk has not as much, and room to spare.
fn reserved(file: &OwnedFd, from: usize, to: usize) -> Option<()> {
    let Some(more) = to.checked_sub(from).filter(|more| *more > 0) else { return Some(()) };
    let disk = fstatvfs(file).ok()?;
    let free = (disk.blocks_available() as u64).saturating_mul(disk.fragment_size() as u64);
    if free.saturating_sub(LEFT) < more as u64 {
        return None;
    }
    fallocate(file, FallocateFlags::empty(), from as i64, more as i64).ok()
}

/// Could the disk not keep something of this file? What still waits to be written is waited for in its first page alone: the error is the whole file's.
fn is_lost(file: &OwnedFd) -> bool {
    // SAFETY: a call by number and length on a descriptor that is open.
    let asked =
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, PAGE as i64, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    asked != 0 && matches!(Errno::last(), Errno::EIO | Errno::ENOSPC)
}

/// Figures would be computed from what is not what was put there. Nothing here may allocate.
fn ends_lost() -> ! {
    const WHY: &[u8] = b"plimsoll: the disk lost a table of this command that lay there (TMPDIR): no figure of it would be right\n";
    let _ = nix::unistd::write(std::io::stderr(), WHY);
    std::process::abort()
}

/// Bytes of files that are mapped and in memory.
fn mapped() -> Option<usize> {
    let told = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = told.lines().find_map(|line| line.strip_prefix("RssFile:"))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use plimsoll_lab::parts::or_skipped;

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

    /// A folder for what the test asks; where there is none it has nothing to test.
    fn folder(large: &Large) -> Result<&CString, String> {
        let folder = large.disk.get().and_then(Option::as_ref).map(|(folder, _)| folder);
        let has_room =
            |folder: &&CString| unnamed(folder).is_some_and(|file| reserved(&file, 0, 64 * MIB).is_some());
        let none = "neither TMPDIR nor /var/tmp nor /tmp lies on ext4, XFS or overlay with 1 GiB left";
        folder.filter(has_room).ok_or_else(|| none.to_owned())
    }

    /// A piece goes to disk, grows there, loses its pages, comes back into memory, and is what it was throughout.
    #[test]
    fn pieces_are_what_they_were_wherever_they_lie() {
        static LARGE: Large = Large::beyond(20 * MIB);
        LARGE.spill();
        if or_skipped(folder(&LARGE)).is_none() {
            return;
        }
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
    }

    /// A disk without room and a folder that is memory leave all as it was.
    #[test]
    fn where_the_disk_has_no_room_memory_is_memory() {
        static LARGE: Large = Large::beyond(0);
        LARGE.spill();
        let wide = Layout::from_size_align(LEAST, 2 * PAGE).expect("a layout");
        // SAFETY: as above.
        unsafe {
            assert!(LARGE.alloc(layout(1 << 62)).is_null(), "neither has so much");
            let at = LARGE.alloc(wide);
            assert_eq!((lie_on_disk(&LARGE), LARGE.held.load(Relaxed)), (0, LEAST));
            LARGE.dealloc(at, wide);
            LARGE.hold();
            let at = LARGE.alloc(layout(LEAST));
            assert_eq!(lie_on_disk(&LARGE), 0, "while a load is sent");
            LARGE.dealloc(at, layout(LEAST));
        }
        assert!(!is_on_disk(c"/dev/shm") && !is_on_disk(c"/proc") && !is_on_disk(c"/nowhere"));
    }
}
