package vsock

// copyPiece is the most that copyBytes copies at once. Above 2 KiB the runtime copies
// with a repeated instruction, which an emulated processor (QEMU's TCG) takes eight
// times as long for where source and destination are not aligned alike; a frame's
// header sees to that they are not. Measured: 16 MiB in 39 ms instead of 5, in pieces 9.
const copyPiece = 2 << 10

// copyBytes does what copy does.
func copyBytes(dst, src []byte) int {
	total := min(len(dst), len(src))
	for done := 0; done < total; {
		done += copy(dst[done:total], src[done:min(done+copyPiece, total)])
	}
	return total
}
