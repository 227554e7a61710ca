package codec

// Bitmask says which tokens are allowed: bit t mod 32 of word ⌊t/32⌋ of a row is set where token t is. It has one row
// for each row of logits, or one row for all of them.
type Bitmask struct {
	Rows   int    // rows of logits, or 1
	Words  int    // 32-bit words per row; tokens beyond them are not allowed, bits beyond the last token are ignored
	Stride int    // words from one row to the next; 0 means Words
	Data   []byte // little-endian words
}
