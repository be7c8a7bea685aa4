# Ringduel with Horovod, an MPI and sshd, as pods of an MPIJob need them.
#   CPU:   docker build -t ringduel .
#   CUDA:  docker build -t ringduel:cuda --build-arg BASE=nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04 --build-arg INDEX= --build-arg GPU=--gpu .
ARG BASE=ubuntu:24.04
FROM ${BASE}

# torch's CPU builds; empty: PyPI's, which are for CUDA.
ARG INDEX=https://download.pytorch.org/whl/cpu
# --gpu: Horovod with NCCL.
ARG GPU=
ARG DEBIAN_FRONTEND=noninteractive

RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      g++ make git python3 python3-dev python3-venv \
      openmpi-bin libopenmpi-dev openssh-server openssh-client iproute2 util-linux \
 && rm -rf /var/lib/apt/lists/* \
 # Pods know each other by the operator's keys, and their addresses change. These lie in a folder that all may write,
 # as a mounted secret's is, which sshd would refuse.
 && mkdir -p /run/sshd \
 && printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' >/etc/ssh/ssh_config.d/ringduel.conf \
 && printf 'StrictModes no\nPermitRootLogin prohibit-password\n' >/etc/ssh/sshd_config.d/ringduel.conf

ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
RUN python3 -m venv /opt/venv

WORKDIR /opt/ringduel
COPY . .
RUN pip install --no-cache-dir torch torchvision ${INDEX:+--index-url "$INDEX"} \
 && pip install --no-cache-dir -e '.[vision,data,mpi]' \
 && ringduel install-horovod ${GPU}

# ssh gives a login shell no PATH of ours; horovodrun and mpirun name their programs in full.
CMD ["ringduel", "doctor"]
