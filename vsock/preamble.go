package vsock

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"
)

// The preamble agrees on where a mux session begins in a byte stream that may
// hold the rest of an earlier one (a virtio-serial port after its host process
// was restarted). The host says hello with a fresh nonce, again and again until
// the guest echoes it; then it says start, the guest answers go, and what
// follows go, in either direction, is yamux. Repeated hellos before start and
// echoes before go are skipped by both.
//
//	host:  \n...\nBOUVET-MUX 1 hello <nonce>\n
//	guest: \nBOUVET-MUX 1 hello <nonce>\n
//	host:  \nBOUVET-MUX 1 start <nonce>\n
//	guest: \nBOUVET-MUX 1 go <nonce>\n
//
// The first hello comes after padding: as many newlines as the last frame of a
// dead session can lack. A guest that still serves that session takes them for
// the rest of it, and then for a frame of no known version, which ends it. On a
// channel that is new there is no such session, and no padding.
const (
	preambleMagic = "BOUVET-MUX 1 "
	nonceLen      = 32
	// maxPreambleLine bounds a line; longer ones are the rest of something else.
	maxPreambleLine = len(preambleMagic) + len("hello ") + nonceLen
	// muxPadding is the number of newlines before a hello to a mux.
	muxPadding = maxMuxData + muxHeaderLen
)

// How often the host repeats its hello until the guest echoes it: quickly at
// first, because the guest may just be starting. Every paddingEvery-th is padded.
const (
	firstHelloInterval = 5 * time.Millisecond
	helloInterval      = 250 * time.Millisecond
	paddingEvery       = 4
)

// Verbs of the preamble.
const (
	verbHello = "hello"
	verbStart = "start"
	verbGo    = "go"
)

// channelBuffer is how much is read from a channel at once.
const channelBuffer = 64 << 10

func newNonce() string {
	var b [nonceLen / 2]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails; it ends the program instead.
	return hex.EncodeToString(b[:])
}

func writePreamble(w io.Writer, verb, nonce string) error {
	_, err := fmt.Fprintf(w, "\n%s%s %s\n", preambleMagic, verb, nonce)
	return err
}

// greet says hello until stop is closed. A write that fails is of no account: the
// channel may be full because the guest is not there yet.
func greet(ch Channel, nonce string, padding int, stop <-chan struct{}) {
	fill := bytes.Repeat([]byte("\n"), padding)
	interval := firstHelloInterval
	for n := 0; ; n++ {
		_ = ch.SetWriteDeadline(time.Now().Add(helloInterval))
		if padding > 0 && n%paddingEvery == 0 {
			_, _ = ch.Write(fill)
		}
		_ = writePreamble(ch, verbHello, nonce)
		timer := time.NewTimer(interval)
		select {
		case <-stop:
			timer.Stop()
			_ = ch.SetWriteDeadline(time.Time{})
			return
		case <-timer.C:
		}
		interval = min(2*interval, helloInterval)
	}
}

// nextPreamble returns the verb and nonce of the next preamble line and skips all
// else.
func nextPreamble(r *bufio.Reader) (verb, nonce string, err error) {
	whole := true // line is the beginning of a line
	for {
		if whole {
			skipNewlines(r)
		}
		line, err := r.ReadSlice('\n')
		ended := err == nil
		if whole && ended {
			if verb, nonce, ok := parsePreamble(line[:len(line)-1]); ok {
				return verb, nonce, nil
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return "", "", err
		}
		whole = ended
	}
}

// skipNewlines passes over the padding that is there, which is long: to read it line
// by line takes an emulated guest tens of milliseconds.
func skipNewlines(r *bufio.Reader) {
	waiting, _ := r.Peek(r.Buffered())
	_, _ = r.Discard(len(waiting) - len(bytes.TrimLeft(waiting, "\n")))
}

func parsePreamble(line []byte) (verb, nonce string, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(preambleMagic))
	if !ok || len(line) > maxPreambleLine {
		return "", "", false
	}
	v, n, ok := bytes.Cut(rest, []byte(" "))
	if !ok || len(n) != nonceLen || len(bytes.Trim(n, "0123456789abcdef")) > 0 {
		return "", "", false
	}
	return string(v), string(n), true
}

// awaitVerb reads preamble lines until verb with this nonce.
func awaitVerb(r *bufio.Reader, verb, nonce string) error {
	for {
		v, n, err := nextPreamble(r)
		if err != nil {
			return err
		}
		if v == verb && n == nonce {
			return nil
		}
	}
}

// offerPreamble is the host's side: it returns when both sides may speak yamux.
func offerPreamble(ch Channel, r *bufio.Reader, padding int) error {
	nonce := newNonce()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		greet(ch, nonce, padding, stop)
	}()
	err := awaitVerb(r, verbHello, nonce)
	close(stop)
	<-stopped
	if err != nil {
		return err
	}
	if err := writePreamble(ch, verbStart, nonce); err != nil {
		return err
	}
	return awaitVerb(r, verbGo, nonce)
}

// acceptPreamble is the guest's side.
func acceptPreamble(w io.Writer, r *bufio.Reader) error {
	nonce := ""
	for {
		verb, n, err := nextPreamble(r)
		if err != nil {
			return err
		}
		switch {
		case verb == verbHello:
			nonce = n
			if err := writePreamble(w, verbHello, nonce); err != nil {
				return err
			}
		case verb == verbStart && n == nonce && nonce != "":
			return writePreamble(w, verbGo, nonce)
		}
	}
}
