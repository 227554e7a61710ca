package block

import "encoding/binary"

// Seal writes a frame's checksum.
func Seal(frame []byte) { binary.LittleEndian.PutUint64(frame[atSum:], checksum(frame)) }
