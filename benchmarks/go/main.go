// Reads the first records of a topic with franz-go, and prints what the readers in Python print: records, bytes,
// seconds and CPU seconds, as JSON.
//
//	franz-go-reader <job as JSON> [tuned]
//
// The client connects and gets the topic's metadata before the clock starts. Time and CPU end with the last record.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const stalledAfter = 20 * time.Second

type job struct {
	Servers    string `json:"servers"`
	Topic      string `json:"topic"`
	Partitions int32  `json:"partitions"`
	Records    int64  `json:"records"`
}

type reading struct {
	Records    int64   `json:"records"`
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
}

func main() {
	if len(os.Args) < 2 {
		die("usage: franz-go-reader <job as JSON> [tuned]")
	}
	var wanted job
	if err := json.Unmarshal([]byte(os.Args[1]), &wanted); err != nil {
		die("cannot parse the job: %v", err)
	}
	found, err := read(wanted, len(os.Args) > 2 && os.Args[2] == "tuned")
	if err != nil {
		die("%v", err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		die("cannot print the result: %v", err)
	}
}

func read(wanted job, tuned bool) (*reading, error) {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(wanted.Servers, ",")...)}
	if tuned {
		options = append(options, kgo.WithPools(&decompressed{}, &raw{}, &records{}))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := prepare(client, wanted.Topic); err != nil {
		return nil, err
	}

	started, startedCPU := time.Now(), cpuSeconds()
	client.AddConsumePartitions(fromBeginning(wanted))
	found := reading{}
	for found.Records < wanted.Records {
		waiting, cancel := context.WithTimeout(context.Background(), stalledAfter)
		fetches := client.PollFetches(waiting)
		cancel()
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("%d of %d records, then: %w", found.Records, wanted.Records, err)
		}
		for _, failed := range fetches.Errors() {
			return nil, fmt.Errorf("%s-%d: %w", failed.Topic, failed.Partition, failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			found.Records++
			found.Bytes += int64(len(record.Value))
			if tuned {
				record.Recycle()
			}
		})
	}
	found.Seconds = time.Since(started).Seconds()
	found.CPUSeconds = cpuSeconds() - startedCPU
	return &found, nil
}

// prepare connects, and asks for the topic's metadata, as the other readers do before their clock starts.
func prepare(client *kgo.Client, topic string) error {
	request := kmsg.NewPtrMetadataRequest()
	one := kmsg.NewMetadataRequestTopic()
	one.Topic = kmsg.StringPtr(topic)
	request.Topics = append(request.Topics, one)
	waiting, cancel := context.WithTimeout(context.Background(), stalledAfter)
	defer cancel()
	_, err := request.RequestWith(waiting, client)
	return err
}

func fromBeginning(wanted job) map[string]map[int32]kgo.Offset {
	offsets := make(map[int32]kgo.Offset, wanted.Partitions)
	for number := range wanted.Partitions {
		offsets[number] = kgo.NewOffset().AtStart()
	}
	return map[string]map[int32]kgo.Offset{wanted.Topic: offsets}
}

// cpuSeconds is user and system time of all threads.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		die("getrusage: %v", err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func die(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(1)
}

// Pools for kgo.WithPools: what a batch was decompressed and decoded into is used again for a later batch.

type decompressed struct{ pool sync.Pool }

func (p *decompressed) GetDecompressBytes(compressed []byte, _ kgo.CompressionCodecType) []byte {
	if found, ok := p.pool.Get().(*[]byte); ok {
		return *found
	}
	return make([]byte, 0, 4*len(compressed))
}

func (p *decompressed) PutDecompressBytes(used []byte) { p.pool.Put(&used) }

type raw struct{ pool sync.Pool }

func (p *raw) GetKRecords(n int) []kmsg.Record {
	if found, ok := p.pool.Get().(*[]kmsg.Record); ok && cap(*found) >= n {
		return *found
	}
	return make([]kmsg.Record, 0, n)
}

func (p *raw) PutKRecords(used []kmsg.Record) { p.pool.Put(&used) }

type records struct{ pool sync.Pool }

func (p *records) GetRecords(n int) []kgo.Record {
	if found, ok := p.pool.Get().(*[]kgo.Record); ok && cap(*found) >= n {
		return *found
	}
	return make([]kgo.Record, 0, n)
}

func (p *records) PutRecords(used []kgo.Record) { p.pool.Put(&used) }
