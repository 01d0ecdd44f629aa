package wire

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
)

// benchPayload is ChunkSize bytes that are not text.
func benchPayload() []byte {
	p := make([]byte, ChunkSize)
	for i := range p {
		p[i] = byte(i * 131)
	}
	return p
}

func BenchmarkDecodeStream(b *testing.B) {
	p := benchPayload()
	line := bytes.TrimSuffix(AppendDataFrame(nil, FrameTypeStdout, p), []byte("\n"))
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		f, _, err := DecodeStream(line)
		if err != nil || len(f.Data) != len(p) {
			b.Fatal(len(f.Data), err)
		}
	}
}

func BenchmarkAppendDataFrame(b *testing.B) {
	p := benchPayload()
	var line []byte
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		line = AppendDataFrame(line[:0], FrameTypeStdout, p)
	}
}

func BenchmarkDecodeStreamSmall(b *testing.B) {
	line := []byte(`{"type":"stdout","data":"aGVsbG8K"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := DecodeStream(line); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeReadFile(b *testing.B) {
	line, err := AppendLine(nil, ReadFileResult{Content: strings.Repeat("a line of text, \"quoted\"\n", MaxContent/25)})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		var r ReadFileResult
		if err := Decode(line, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValid(b *testing.B) {
	line := AppendDataFrame(nil, FrameTypeStdout, benchPayload())
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if err := Valid(line); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLineReader(b *testing.B) {
	line := AppendDataFrame(nil, FrameTypeStdout, benchPayload())
	stream := bytes.Repeat(line, 64)
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		l := NewLineReader(bytes.NewReader(stream), MaxExecLine, nil)
		for range 64 {
			if _, err := l.ReadLine(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// The standard library's, to compare with.
func BenchmarkLibraryBase64(b *testing.B) {
	p := benchPayload()
	text := base64.StdEncoding.AppendEncode(nil, p)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			text = base64.StdEncoding.AppendEncode(text[:0], p)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			p, _ = base64.StdEncoding.AppendDecode(p[:0], text)
		}
	})
}
