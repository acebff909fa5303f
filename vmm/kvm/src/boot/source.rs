//! A file of the software, as linux-loader and the RAM read it.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
};

use vm_memory::{ReadVolatile, VolatileMemoryError, VolatileSlice, bitmap::BitmapSlice};

use crate::memory::Ram;

/// An open file that is read into RAM.
///
/// The system copies it into the RAM's file. A system call that reads into the mapped RAM takes
/// more than twice as long, because each page of that is mapped by a page fault.
pub(super) struct Source<'a> {
    pub(super) file: File,
    pub(super) ram: &'a Ram,
}

impl Read for Source<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.file.read(to)
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl ReadVolatile for Source<'_> {
    fn read_volatile<B: BitmapSlice>(
        &mut self,
        to: &mut VolatileSlice<'_, B>,
    ) -> Result<usize, VolatileMemoryError> {
        let address = to.ptr_guard().as_ptr().addr();
        match self.ram.file_offset(address, to.len()) {
            Some(offset) => {
                let copied = self.ram.fill_from(&self.file, offset, to.len());
                copied.map_err(VolatileMemoryError::IOError)
            }
            // linux-loader's own memory, for a header.
            None => self.file.read_volatile(to),
        }
    }
}
