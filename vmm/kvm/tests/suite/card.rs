//! A PCI function for tests, in this process: a BAR with memory, a mirror, registers and MSI-X.

use std::{
    fs::File,
    io::Write as _,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use nicforge_kvm::{Area, Bar, BarKind, Function, FunctionError, Ram};

/// Offsets in BAR 0: memory, memory that the guest only reads, registers, and the MSI-X table.
pub(crate) const MEMORY: u32 = 0;
pub(crate) const MIRROR: u32 = 0x1000;
pub(crate) const REGISTERS: u32 = 0x2000;
pub(crate) const TABLE: u32 = 0x3000;
/// Offset of the MSI-X pending bits, of which the card itself has none.
pub(crate) const PENDING: u32 = TABLE + 0x800;
/// Size of BAR 0.
pub(crate) const SIZE: u32 = 0x4000;
/// A write to this register raises an interrupt on vector 0.
pub(crate) const RAISE: u32 = REGISTERS + 0x80;
/// A write to this register asserts the interrupt line.
pub(crate) const RAISE_LINE: u32 = REGISTERS + 0x84;
/// An access to this register fails, as those to a server that is gone do.
pub(crate) const BROKEN: u32 = REGISTERS + 0x90;
/// The value of registers, to which their offset is added.
pub(crate) const REGISTER_VALUE: u32 = 0x5a5a_0000;

/// Offset of the PCI Express capability in the configuration space.
pub(crate) const EXPRESS: u32 = 0x60;

/// The card.
pub(crate) struct Card {
    /// Whether it has a second BAR, of a page of registers.
    has_second_bar: bool,
    pub(crate) file: Arc<File>,
    config: Mutex<[u8; 256]>,
    /// The writes that reached the card, except those to its MSI-X table.
    writes: Mutex<Vec<(u64, u32)>>,
    /// The writes to the MSI-X table, and to what follows it.
    table_writes: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Whether all accesses fail.
    is_broken: AtomicBool,
    vector: Mutex<Option<File>>,
    line: Mutex<Option<File>>,
    resets: AtomicU32,
}

impl Card {
    pub(crate) fn new() -> Arc<Self> {
        Self::with(false)
    }

    /// Returns a card with a second BAR, of a page of registers.
    pub(crate) fn with_two_bars() -> Arc<Self> {
        Self::with(true)
    }

    fn with(has_second_bar: bool) -> Arc<Self> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x2000).unwrap();
        Arc::new(Self {
            has_second_bar,
            file: Arc::new(file),
            config: Mutex::new(config()),
            writes: Mutex::default(),
            table_writes: Mutex::default(),
            is_broken: AtomicBool::new(false),
            vector: Mutex::default(),
            line: Mutex::default(),
            resets: AtomicU32::new(0),
        })
    }

    /// Returns how often the bus was reset.
    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Ordering::Relaxed)
    }

    /// Returns the writes that reached the card.
    pub(crate) fn writes(&self) -> Vec<(u64, u32)> {
        self.writes.lock().unwrap().clone()
    }

    /// Returns the writes to the MSI-X table, and to what follows it: offsets and bytes.
    pub(crate) fn table_writes(&self) -> Vec<(u64, Vec<u8>)> {
        self.table_writes.lock().unwrap().clone()
    }

    /// Makes all further accesses fail, as those to a server that is gone do.
    pub(crate) fn break_down(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), FunctionError> {
        match self.is_broken.load(Ordering::Relaxed) {
            true => Err(FunctionError::Malformed("a broken card".into())),
            false => Ok(()),
        }
    }

    /// Returns a word of the memory behind the areas.
    pub(crate) fn word(&self, offset: u32) -> u32 {
        let mut word = [0; 4];
        self.file.read_exact_at(&mut word, offset.into()).unwrap();
        u32::from_le_bytes(word)
    }

    pub(crate) fn set_word(&self, offset: u32, value: u32) {
        self.file.write_all_at(&value.to_le_bytes(), offset.into()).unwrap();
    }
}

/// Signals an eventfd, if there is one.
fn raise(event: &Mutex<Option<File>>) {
    if let Some(event) = event.lock().unwrap().as_mut() {
        event.write_all(&1_u64.to_ne_bytes()).unwrap();
    }
}

/// Returns a configuration space with an interrupt line, MSI-X (two vectors, the table in BAR 0),
/// and a function-level reset.
fn config() -> [u8; 256] {
    let mut config = [0; 256];
    config[0x00..0x04].copy_from_slice(&[0xfc, 0x1e, 0x34, 0x12]);
    // A capability list at 0x40.
    config[0x06] = 0x10;
    config[0x34] = 0x40;
    config[0x3d] = 1;
    config[0x40..0x44].copy_from_slice(&[0x11, EXPRESS as u8, 1, 0]);
    config[0x44..0x48].copy_from_slice(&TABLE.to_le_bytes());
    config[0x48..0x4c].copy_from_slice(&PENDING.to_le_bytes());
    // PCI Express, with a function-level reset.
    let express = EXPRESS as usize;
    config[express..express + 4].copy_from_slice(&[0x10, 0, 2, 0]);
    config[express + 4..express + 8].copy_from_slice(&(1_u32 << 28).to_le_bytes());
    config
}

impl Function for Card {
    fn bars(&self) -> Vec<Bar> {
        let area = |offset: u32, writable| Area {
            offset: offset.into(),
            size: 0x1000,
            file: self.file.clone(),
            file_offset: offset.into(),
            writable,
        };
        let areas = vec![area(MEMORY, true), area(MIRROR, false)];
        let mut bars = vec![Bar { index: 0, kind: BarKind::Memory32, size: SIZE.into(), areas }];
        if self.has_second_bar {
            bars.push(Bar { index: 1, kind: BarKind::Memory32, size: 0x1000, areas: Vec::new() });
        }
        bars
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        self.check()?;
        let (config, at) = (self.config.lock().unwrap(), usize::from(offset));
        data.copy_from_slice(&config[at..at + data.len()]);
        Ok(())
    }

    fn config_write(&self, _: u16, _: &[u8]) -> Result<(), FunctionError> {
        self.check()
    }

    fn bar_read(&self, _: u8, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        if offset == u64::from(BROKEN) {
            return Err(FunctionError::Malformed("a broken register".into()));
        }
        let is_pending_bits = (u64::from(PENDING)..u64::from(PENDING) + 8).contains(&offset);
        let value = if is_pending_bits { 0 } else { u64::from(REGISTER_VALUE) + offset };
        data.copy_from_slice(&value.to_le_bytes()[..data.len()]);
        Ok(())
    }

    fn bar_write(&self, _: u8, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        self.check()?;
        if offset >= TABLE.into() {
            self.table_writes.lock().unwrap().push((offset, data.to_vec()));
            return Ok(());
        }

        let value = data.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        self.writes.lock().unwrap().push((offset, value));
        if offset == u64::from(RAISE) {
            raise(&self.vector);
        } else if offset == u64::from(RAISE_LINE) {
            raise(&self.line);
        }
        Ok(())
    }

    fn bind_vector(&self, vector: u16, event: BorrowedFd<'_>) -> Result<(), FunctionError> {
        let event: OwnedFd = event.try_clone_to_owned().unwrap();
        if vector == 0 {
            *self.vector.lock().unwrap() = Some(event.into());
        }
        Ok(())
    }

    fn release_vectors(&self) -> Result<(), FunctionError> {
        *self.vector.lock().unwrap() = None;
        Ok(())
    }

    fn bind_line(&self, raised: BorrowedFd<'_>, _: BorrowedFd<'_>) -> Result<(), FunctionError> {
        let event: OwnedFd = raised.try_clone_to_owned().unwrap();
        *self.line.lock().unwrap() = Some(event.into());
        Ok(())
    }

    fn map_ram(&self, _: &Ram) -> Result<(), FunctionError> {
        Ok(())
    }

    fn reset(&self) -> Result<(), FunctionError> {
        self.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
