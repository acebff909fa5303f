//! An image of a read-only file system that Linux mounts (EROFS, since Linux 5.4).
//!
//! Nothing is compressed, and each file is in one piece. So an image is written once from its
//! beginning to its end, and files are copied without a look at their bytes.
//!
//! ```text
//!   block 0      superblock, at byte 1024
//!   block 1 ...  an inode of 64 bytes for each node, in their order
//!   then         contents, each from a block's beginning: entries of a folder, the target of a
//!                link, or the bytes of a file
//! ```

use std::{
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
};

use zerocopy::{
    Immutable, IntoBytes,
    little_endian::{U16, U32, U64},
};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;

/// The magic number of the file system, and the place of its superblock.
const MAGIC: u32 = 0xe0f5_e1e2;
const SUPERBLOCK_OFFSET: u64 = 1024;
/// The times of inodes are those of the last change of the content.
const TIMES_OF_CONTENT: u32 = 2;

/// Inodes are numbered by units of this many bytes from the image's beginning.
const INODE_UNIT: u64 = 32;
/// The inode's long version, whose content is in whole blocks.
const LONG_INODE: u16 = 1;
/// The first block with inodes. No inode has the number 0, which means an unused entry to programs.
const FIRST_INODE_BLOCK: u64 = 1;

/// Types of files in `st_mode`.
const MODE_FOLDER: u16 = 0o040_000;
const MODE_FILE: u16 = 0o100_000;
const MODE_LINK: u16 = 0o120_000;
/// The bits of `st_mode` beside the type.
const PERMISSIONS: u16 = 0o7777;

/// The root's index.
pub(super) const ROOT: usize = 0;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SuperBlock {
    magic: U32,
    checksum: U32,
    feature_compat: U32,
    block_bits: u8,
    extension_slots: u8,
    root: U16,
    inodes: U64,
    /// Seconds and nanoseconds.
    build_time: [u8; 12],
    blocks: U32,
    metadata_block: U32,
    attributes_block: U32,
    uuid: [u8; 16],
    volume_name: [u8; 16],
    feature_incompat: U32,
    unused: [u8; 44],
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Inode {
    format: U16,
    attributes: U16,
    mode: U16,
    unused: U16,
    size: U64,
    block: U32,
    number: U32,
    owner: U32,
    group: U32,
    time: U64,
    nanoseconds: U32,
    links: U32,
    reserved: [u8; 16],
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct DirectoryEntry {
    inode: U64,
    name_offset: U16,
    file_type: u8,
    reserved: u8,
}

/// Bytes of an inode, and of a folder's entry without its name.
const INODE: u64 = size_of::<Inode>() as u64;
const ENTRY: usize = size_of::<DirectoryEntry>();

/// The attributes of a file, folder or link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    /// The permissions, as in `st_mode`. Other bits do not count.
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    /// Seconds since 1970 of the last change.
    pub(super) time: u64,
}

/// The content of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Folder,
    /// A file of this many bytes.
    File(u64),
    /// A symbolic link with its target.
    Link(Vec<u8>),
}

impl Content {
    /// Returns the type's bits in `st_mode`.
    fn mode(&self) -> u16 {
        match self {
            Self::Folder => MODE_FOLDER,
            Self::File(_) => MODE_FILE,
            Self::Link(_) => MODE_LINK,
        }
    }

    /// Returns the type in a folder's entry.
    fn file_type(&self) -> u8 {
        match self {
            Self::File(_) => 1,
            Self::Folder => 2,
            Self::Link(_) => 7,
        }
    }
}

/// A file, a folder or a symbolic link.
#[derive(Debug)]
struct Node {
    folder: usize,
    name: Vec<u8>,
    attributes: Attributes,
    content: Content,
}

/// The nodes of a file system.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// Returns a tree that has a root alone.
    pub(super) fn new(root: Attributes) -> Self {
        Self {
            nodes: vec![Node { folder: ROOT, name: Vec::new(), attributes: root, content: Content::Folder }],
        }
    }

    /// Adds a node to a folder. Returns its index.
    pub(super) fn add(
        &mut self,
        folder: usize,
        name: &[u8],
        attributes: Attributes,
        content: Content,
    ) -> usize {
        self.nodes.push(Node { folder, name: name.to_vec(), attributes, content });
        self.nodes.len() - 1
    }

    /// Returns the number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Writes the image to an empty file.
    ///
    /// `copy` writes the content of a file: it gets the file's index and its size, and writes from
    /// the image's position on. Bytes that it does not write are zero.
    pub(super) fn write<E: From<io::Error>>(
        &self,
        image: &mut File,
        mut copy: impl FnMut(usize, u64, &mut File) -> Result<(), E>,
    ) -> Result<(), E> {
        let bodies = self.bodies();
        let (blocks, end) = self.place(&bodies);
        self.write_metadata(image, &bodies, &blocks, end)?;

        for (index, (body, block)) in bodies.iter().zip(&blocks).enumerate() {
            image.seek(SeekFrom::Start(block * BLOCK))?;
            match body {
                Body::Bytes(bytes) => image.write_all(bytes)?,
                Body::File(size) => copy(index, *size, image)?,
            }
        }

        image.set_len(end * BLOCK)?;
        Ok(())
    }

    /// Returns the content of each node.
    fn bodies(&self) -> Vec<Body> {
        let mut held: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            held[node.folder].push(index);
        }

        let bodies =
            self.nodes.iter().zip(held).enumerate().map(|(index, (node, held))| match &node.content {
                Content::Folder => Body::Bytes(self.entries(index, &held)),
                Content::File(size) => Body::File(*size),
                Content::Link(target) => Body::Bytes(target.clone()),
            });
        bodies.collect()
    }

    /// Returns the first block of each node's content, and the number of blocks of the image.
    fn place(&self, bodies: &[Body]) -> (Vec<u64>, u64) {
        let mut next = FIRST_INODE_BLOCK + (self.nodes.len() as u64 * INODE).div_ceil(BLOCK);
        let mut place = |body: &Body| {
            let block = next;
            next += body.size().div_ceil(BLOCK);
            block
        };
        let blocks = bodies.iter().map(&mut place).collect();
        (blocks, next)
    }

    fn write_metadata(&self, image: &mut File, bodies: &[Body], blocks: &[u64], end: u64) -> io::Result<()> {
        let mut out = BufWriter::new(image);
        out.seek(SeekFrom::Start(SUPERBLOCK_OFFSET))?;
        out.write_all(self.superblock(end).as_bytes())?;

        out.seek(SeekFrom::Start(FIRST_INODE_BLOCK * BLOCK))?;
        for (index, (body, block)) in bodies.iter().zip(blocks).enumerate() {
            out.write_all(self.inode(index, body.size(), *block).as_bytes())?;
        }
        out.flush()
    }

    fn superblock(&self, blocks: u64) -> SuperBlock {
        SuperBlock {
            magic: MAGIC.into(),
            checksum: 0.into(),
            feature_compat: TIMES_OF_CONTENT.into(),
            block_bits: BLOCK.ilog2() as u8,
            extension_slots: 0,
            root: (number(ROOT) as u16).into(),
            inodes: (self.nodes.len() as u64).into(),
            build_time: [0; 12],
            blocks: (blocks as u32).into(),
            metadata_block: 0.into(),
            attributes_block: 0.into(),
            uuid: [0; 16],
            volume_name: [0; 16],
            feature_incompat: 0.into(),
            unused: [0; 44],
        }
    }

    fn inode(&self, index: usize, size: u64, block: u64) -> Inode {
        let Node { attributes, content, .. } = &self.nodes[index];
        Inode {
            format: LONG_INODE.into(),
            attributes: 0.into(),
            mode: (content.mode() | attributes.mode as u16 & PERMISSIONS).into(),
            unused: 0.into(),
            size: size.into(),
            block: (block as u32).into(),
            number: (index as u32 + 1).into(),
            owner: attributes.owner.into(),
            group: attributes.group.into(),
            time: attributes.time.into(),
            nanoseconds: 0.into(),
            // Programs take 1 as a folder's number of links for "not counted".
            links: 1.into(),
            reserved: [0; 16],
        }
    }

    /// Returns the content of a folder, with the nodes that it holds.
    ///
    /// Each block has entries and then their names, in the names' order. The last block ends with
    /// its last name.
    fn entries(&self, folder: usize, held: &[usize]) -> Vec<u8> {
        let node = |&index: &usize| (self.nodes[index].name.as_slice(), index);
        let above = self.nodes[folder].folder;
        let mut entries: Vec<(&[u8], usize)> = held.iter().map(node).collect();
        entries.extend([(b".".as_slice(), folder), (b"..".as_slice(), above)]);
        entries.sort_unstable();

        let mut content = Vec::new();
        let mut rest = entries.as_slice();
        while !rest.is_empty() {
            let (block, later) = rest.split_at(count_of_one_block(rest));
            content.resize(content.len().next_multiple_of(BLOCK as usize), 0);
            self.add_entries(block, &mut content);
            rest = later;
        }
        content
    }

    /// Adds the entries of one block.
    fn add_entries(&self, entries: &[(&[u8], usize)], content: &mut Vec<u8>) {
        let mut name_offset = entries.len() * ENTRY;
        for (name, index) in entries {
            let entry = DirectoryEntry {
                inode: number(*index).into(),
                name_offset: (name_offset as u16).into(),
                file_type: self.nodes[*index].content.file_type(),
                reserved: 0,
            };
            content.extend(entry.as_bytes());
            name_offset += name.len();
        }
        entries.iter().for_each(|(name, _)| content.extend(*name));
    }
}

/// The content of a node as it is in the image.
enum Body {
    Bytes(Vec<u8>),
    File(u64),
}

impl Body {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(size) => *size,
        }
    }
}

/// Returns the number of a node's inode.
fn number(index: usize) -> u64 {
    (FIRST_INODE_BLOCK * BLOCK + index as u64 * INODE) / INODE_UNIT
}

/// Returns how many entries the next block of a folder has room for: at least one, because a name
/// has at most 255 bytes.
fn count_of_one_block(entries: &[(&[u8], usize)]) -> usize {
    let mut used = 0;
    let fits = |(name, _): &&(&[u8], usize)| {
        used += ENTRY + name.len();
        used <= BLOCK as usize
    };
    entries.iter().take_while(fits).count().max(1)
}
