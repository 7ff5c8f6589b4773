//! The wire format of protobuf: fields by number, with integers, fixed-width numbers and bytes as values.

use super::ProtobufError;

/// A field on the wire.
pub(super) struct Field<'a> {
    pub(super) number: u64,
    pub(super) wire: Wire<'a>,
}

pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub(super) fn bytes(&self) -> Option<&'a [u8]> {
        match self.wire {
            Wire::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Reads a variable-length integer from the front of the bytes.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(ProtobufError::Wire)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ProtobufError::Wire)
}

/// Returns the fields of a message in the order of the bytes.
pub(super) fn fields(mut bytes: &[u8]) -> Result<Vec<Field<'_>>, ProtobufError> {
    fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = bytes.split_at_checked(length).ok_or(ProtobufError::Wire)?;
        *bytes = rest;
        Ok(taken)
    }
    let little_endian = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
    };
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let wire = match key & 7 {
            0 => Wire::Varint(varint(&mut bytes)?),
            1 => Wire::Fixed(little_endian(take(&mut bytes, 8)?)),
            2 => {
                let length =
                    usize::try_from(varint(&mut bytes)?).map_err(|_| ProtobufError::Wire)?;
                Wire::Bytes(take(&mut bytes, length)?)
            }
            5 => Wire::Fixed(little_endian(take(&mut bytes, 4)?)),
            _ => return Err(ProtobufError::Wire),
        };
        found.push(Field {
            number: key >> 3,
            wire,
        });
    }
    Ok(found)
}

pub(super) fn utf8(bytes: &[u8]) -> Result<String, ProtobufError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| ProtobufError::Wire)
}
