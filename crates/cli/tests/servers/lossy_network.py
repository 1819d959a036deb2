"""A network of our own making: every packet between 10.77.0.1 and 10.77.0.2 takes so long, and so many are lost.

usage: lossy_network.py DELAY_MS DROP_EVERY COMMAND...   (in a network namespace of its own: unshare -rn python3 ...)

A TUN device whose far end is this program. It swaps source and destination of each packet, so that a server on 10.77.0.1 is
reached as 10.77.0.2 and sees its client there: both directions pass through here, and no checksum changes. Each packet is
handed on DELAY_MS later, except that of the packets that carry data every DROP_EVERY-th is dropped (0: none). COMMAND runs
beside it; at its end the counts go to stdout as one line: network data=N dropped_to=N dropped_from=N, where "to" is what went
to the server's port (PORT in the environment).
"""

import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def main():
    delay, every, command = float(sys.argv[1]) / 1e3, int(sys.argv[2]), sys.argv[3:]
    port = int(os.environ["PORT"])
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"relay0", IFF_TUN | IFF_NO_PI))
    for words in ("link set lo up", "addr add 10.77.0.1/24 dev relay0", "link set relay0 up"):
        subprocess.check_call(["ip", *words.split()])
    child = subprocess.Popen(command)
    waiting, n, data, dropped = [], 0, 0, {True: 0, False: 0}
    while child.poll() is None:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            os.write(tun, heapq.heappop(waiting)[2])
        left = min(0.02, waiting[0][0] - now) if waiting else 0.02
        if not select.select([tun], [], [], left)[0]:
            continue
        while True:
            try:
                packet = os.read(tun, 65536)
            except BlockingIOError:
                break
            if packet[0] >> 4 != 4 or packet[9] != 6:
                continue
            head = (packet[0] & 15) * 4
            to = struct.unpack_from("!H", packet, head + 2)[0] == port
            carries = len(packet) - head - (packet[head + 12] >> 4) * 4 > 0
            data += carries
            if carries and every and data % every == 0:
                dropped[to] += 1
                continue
            n += 1
            swapped = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
            heapq.heappush(waiting, (time.monotonic() + delay, n, swapped))
    print(f"network data={data} dropped_to={dropped[True]} dropped_from={dropped[False]}", flush=True)
    sys.exit(child.returncode)


main()
