package vsock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (net.Conn, net.Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[i] = c
	}
	return out[0], out[1]
}

func TestMuxSmoke(t *testing.T) {
	a, b := pair(t)
	a.Write([]byte("garbage without newline"))
	m := NewMux(a)
	l := NewMuxListener(b)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				r := bufio.NewReader(c)
				line, _ := r.ReadString('\n')
				fmt.Fprintf(c, "OK 52\n")
				io.WriteString(c, line)
				io.Copy(c, r)
				c.Close()
			}()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := m.Dial(ctx, 52)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "hello\n")
	r := bufio.NewReader(c)
	x, _ := r.ReadString('\n')
	y, _ := r.ReadString('\n')
	t.Log(x, y)
	c.Close()
	m.Close()
	if _, err := l.Accept(); err != io.EOF {
		t.Fatal(err)
	}
	l.Close()
}

func TestHangup(t *testing.T) {
	a, b := pair(t)
	a.(*net.UnixConn).CloseWrite()
	io.ReadAll(b)
	done := make(chan bool)
	go func() { done <- AwaitHangup(b) }()
	select {
	case <-done:
		t.Fatal("early")
	case <-time.After(50 * time.Millisecond):
	}
	a.Close()
	t.Log(<-done)
}
