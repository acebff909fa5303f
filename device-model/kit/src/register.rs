//! The widths of register accesses.
//!
//! A NIC defines which register an offset names, and what a wrong access causes. These methods say
//! whether an access has the register's width, and move the value. Values are little-endian.

/// The value of a register: an unsigned integer as wide as the register.
pub trait RegisterValue: Copy {
    /// Returns whether an access covers one whole register of this width: it has the width and is
    /// aligned to it.
    fn is_whole_access(offset: u64, length: usize) -> bool;

    /// Returns the value that a write carries; `None` if the write has another width.
    fn from_write(data: &[u8]) -> Option<Self>;

    /// Answers a read with the value. A read of another width keeps the content of `data`, which is
    /// ones when the machine passes it.
    fn answer_read(self, data: &mut [u8]);
}

macro_rules! register_value {
    ($value:ty) => {
        impl RegisterValue for $value {
            #[inline]
            fn is_whole_access(offset: u64, length: usize) -> bool {
                length == size_of::<$value>() && offset.is_multiple_of(size_of::<$value>() as u64)
            }

            #[inline]
            fn from_write(data: &[u8]) -> Option<Self> {
                Some(<$value>::from_le_bytes(data.try_into().ok()?))
            }

            #[inline]
            fn answer_read(self, data: &mut [u8]) {
                if data.len() == size_of::<$value>() {
                    data.copy_from_slice(&self.to_le_bytes());
                }
            }
        }
    };
}

register_value!(u32);
register_value!(u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_access_has_the_width_and_its_alignment() {
        assert!(u32::is_whole_access(4, 4) && u64::is_whole_access(8, 8));
        assert!(!u32::is_whole_access(2, 4) && !u64::is_whole_access(4, 8));
        assert!(!u32::is_whole_access(4, 8) && !u64::is_whole_access(8, 4));
        assert!(!u32::is_whole_access(4, 0));
    }

    #[test]
    fn a_write_of_another_width_has_no_value() {
        assert_eq!(u32::from_write(&[1, 2, 0, 0]), Some(0x201));
        assert_eq!(u64::from_write(&[1, 0, 0, 0, 0, 0, 0, 2]), Some(2 << 56 | 1));
        assert!([0, 3, 5, 8].iter().all(|&length| u32::from_write(&[0; 8][..length]).is_none()));
    }

    #[test]
    fn a_read_of_another_width_leaves_the_data_unchanged() {
        let mut data = [0xff; 8];
        0x1234_u32.answer_read(&mut data);
        assert_eq!(data, [0xff; 8]);

        0x1234_u64.answer_read(&mut data);
        assert_eq!(data, [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
    }
}
